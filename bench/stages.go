package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"dsmd/bench/crew"
	"dsmd/bench/micro"
	"dsmd/bench/stages"
)

// keptStages is how many stages each daemon keeps: more than all runs of one microbenchmark leave.
const keptStages = 1 << 19

// stagesRuns is how often `bench stages` makes each measurement unless told, and stagesMaxRuns how
// often at most, because of keptStages.
const stagesRuns, stagesMaxRuns = 5, 16

const (
	// minLogPort to maxLogPort are where daemons tell their stages.
	minLogPort, maxLogPort = 20000, 32000
	// maxDraws is how many of those may be taken until it looks as if no port could be had.
	maxDraws = 100
)

// stagesMicros are the microbenchmarks that `bench stages` takes apart: single accesses that one
// other node answers.
var stagesMicros = []string{"read_miss", "write_miss", "upgrade"}

func stagesCommand() *cobra.Command {
	var o stagesOptions
	cmd := &cobra.Command{
		Use:   "stages",
		Short: "Take faults apart, stage by stage, by the daemons' own timestamps",
		Long: `Measures read_miss, write_miss and upgrade as ` + "`bench micro`" + ` does, on two nodes whose daemons note when each fault passes which stage, and
says how long each stage takes. Noting costs some 2 % of the time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.runs < 1 || o.runs > stagesMaxRuns {
				return fmt.Errorf("--runs %d: use 1 to %d", o.runs, stagesMaxRuns)
			}
			o.predict = off // as in micro
			if err := o.check(micro.MinNodes); err != nil {
				return err
			}
			return o.measured(cmd, o.measure)
		},
	}
	o.nodes = micro.MinNodes
	o.registerShared(cmd.Flags())
	cmd.Flags().IntVar(&o.runs, "runs", stagesRuns, "how often each is measured")
	cmd.Flags().StringVar(&o.out, "out", "", "write table, chart and JSON to this `folder`")
	return cmd
}

// stagesOptions are the flags of `bench stages`.
type stagesOptions struct {
	clusterOptions
	runs int
	out  string
}

// measure measures in a workplace. What was measured is published, and goes to the folder of --out.
func (o *stagesOptions) measure(ctx context.Context, w workplace) (string, any, error) {
	options, err := o.crew(w, workerMicro)
	if err != nil {
		return "", nil, err
	}
	logs, err := freeAddresses(o.nodes)
	if err != nil {
		return "", nil, err
	}
	options.Flags = append(options.Flags, "--stages", strconv.Itoa(keptStages))
	for _, addr := range logs {
		options.Flags = append(options.Flags, "--metrics", addr)
	}
	result, err := withCrew(ctx, options, func(ctx context.Context, c *crew.Crew) (*stages.Result, error) {
		return takeApart(ctx, c, o.runs, logs, w.view)
	})
	if err == nil && o.out != "" {
		err = result.WriteTo(o.out)
	}
	if err != nil {
		return "", nil, err
	}
	return result.Text(), result, nil
}

// freeAddresses are addresses of this machine at which nobody listens now. Their ports are drawn by
// lot, from below those that Linux hands out (ip_local_port_range): one of these could be another
// process's before the daemons listen.
func freeAddresses(count int) (addresses []string, err error) {
	for tries := 0; len(addresses) < count; tries++ {
		port := minLogPort + rand.IntN(maxLogPort-minLogPort)
		l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil && tries < maxDraws {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("looking for a free port: %w", err)
		}
		defer l.Close() // not before all are found, or they could be the same
		addresses = append(addresses, l.Addr().String())
	}
	return addresses, nil
}

// takeApart measures on one cluster, one microbenchmark after the other. logs are where the daemons
// tell what they have noted.
func takeApart(ctx context.Context, c *crew.Crew, runs int, logs []string, view *display) (*stages.Result, error) {
	if _, err := c.Collect(ctx); err != nil { // All have joined.
		return nil, err
	}
	micros, err := micro.Choose(stagesMicros)
	if err != nil {
		return nil, err
	}
	var result stages.Result
	for i, m := range micros {
		var accesses []stages.Access
		for run := range runs {
			view.show(m.Name, i*runs+run, len(micros)*runs)
			some, err := accessesOf(ctx, c, micro.Request{Name: m.Name, Run: run, Starts: true})
			if err != nil {
				return nil, err
			}
			accesses = append(accesses, some...)
		}
		noted := make([][]stages.Record, len(logs))
		for node, addr := range logs {
			if noted[node], err = askStages(ctx, addr); err != nil {
				return nil, fmt.Errorf("asking node %d for its stages: %w", node, err)
			}
		}
		// rank 1 accesses what rank 0 has
		operation, err := stages.Summarise(m, accesses, noted[1], noted[0])
		if err != nil {
			return nil, err
		}
		result.Operations = append(result.Operations, operation)
	}
	return &result, nil
}

// accessesOf lets all ranks do one run and returns when rank 1 accessed what.
func accessesOf(ctx context.Context, c *crew.Crew, request micro.Request) ([]stages.Access, error) {
	replies, err := measureOnce(ctx, c, request)
	if err != nil {
		return nil, err
	}
	reply := replies[1]
	if len(reply.Starts) != len(reply.Samples) {
		return nil, fmt.Errorf("rank 1 reported %d times of %s and said of %d when they began", len(reply.Samples), request.Name, len(reply.Starts))
	}
	accesses := make([]stages.Access, len(reply.Starts))
	for i, start := range reply.Starts {
		accesses[i] = stages.Access{Start: start, End: start + int64(1e3*reply.Samples[i])}
	}
	return accesses, nil
}

// askStages asks a daemon what it has noted.
func askStages(ctx context.Context, addr string) ([]stages.Record, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/debug/stages", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", addr, response.Status)
	}
	var records []stages.Record
	for in := json.NewDecoder(response.Body); ; {
		var r stages.Record
		switch err := in.Decode(&r); {
		case errors.Is(err, io.EOF):
			return records, nil
		case err != nil:
			return nil, err
		}
		records = append(records, r)
	}
}
