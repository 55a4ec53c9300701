package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"dsmd/bench/fabric"
)

const (
	// defaultPoint is how long each measurement of the fabric lasts.
	defaultPoint = 100 * time.Millisecond
	// defaultPage is the size of a page, and defaultControl that of a message about one: a request
	// or a grant of the protocol.
	defaultPage, defaultControl = 4096, 64
	// defaultFabricRuns is how often everything is measured.
	defaultFabricRuns = 5
)

func fabricCommand() *cobra.Command {
	var o fabricOptions
	cmd := &cobra.Command{
		Use:   "fabric [SECTION...]",
		Short: "Measure the network: RDMA and TCP, operations and page fetches",
		Long:  fabricHelp(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.listen != "" {
				return serveFabric(cmd.Context(), &o, args)
			}
			if err := o.resolve(args); err != nil {
				return err
			}
			ctx, cancel := bounded(cmd.Context(), o.timeout)
			defer cancel()
			return measureFabric(ctx, &o, cmd)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.transport, "transport", "auto", "what to measure: tcp, rdma, both, or auto: tcp, and rdma where there is a device")
	flags.StringVar(&o.device, "device", "", "RDMA device of this end (default: the first usable one)")
	flags.StringVar(&o.peerDevice, "peer-device", "", "RDMA device of the other end, if that is this machine too (default: the second usable one, or the same)")
	flags.StringVar(&o.listen, "listen", "", "be the other end of a measurement, at this `address` (host:port), until interrupted")
	flags.StringVar(&o.peer, "peer", "", "`address` of a bench fabric --listen on another machine (default: the other end is in this process)")
	flags.IntSliceVar(&o.options.Sizes, "sizes", fabric.DefaultSizes, "`bytes` of the messages of latency and bandwidth")
	flags.IntVar(&o.options.Page, "page", defaultPage, "bytes of a page, in the other sections")
	flags.IntVar(&o.options.Control, "control", defaultControl, "bytes of a message about a page, in fetch")
	flags.DurationVar(&o.options.Time, "time", defaultPoint, "how long each measurement lasts")
	flags.IntVar(&o.options.Runs, "runs", defaultFabricRuns, "how often everything is measured: the best run counts, and of fetch the median")
	flags.BoolVar(&o.options.Perftest, "perftest", false, "compare RDMA's page fetches with perftest's own ib_write_lat and ib_send_lat, run in turns with them")
	jsonFlag(flags, &o.json)
	flags.StringVar(&o.out, "out", "", "write tables, plots and JSON to this `folder`")
	timeoutFlag(flags, &o.timeout)
	return cmd
}

func fabricHelp() string {
	var lines [][2]string
	for _, s := range fabric.Sections {
		lines = append(lines, [2]string{string(s.Section), s.Summary})
	}
	return listing("Measure what lies below the shared memory: the network's own operations between two ends, and page fetches. The other end is\n"+
		"in this process or, with --peer, another machine's `bench fabric --listen`. All sections are measured, if none is named:\n", lines,
		"\nRDMA needs a build with -tags rdma, and a device: `dsmd doctor` says what is missing, and transport/rdma/testbed/run makes a machine that\n"+
			"has one, in software.")
}

// fabricOptions are the arguments and flags of `bench fabric`.
type fabricOptions struct {
	options            fabric.Options
	transport          string
	device, peerDevice string
	listen, peer       string
	json, out          string
	timeout            time.Duration
	note               string // why RDMA is not measured, if it is left out
}

func (o *fabricOptions) resolve(args []string) error {
	for _, name := range args {
		section := fabric.Section(name)
		if !slices.Contains(fabric.SectionNames(), section) {
			return fmt.Errorf("there is no section %q; there are %v", name, fabric.SectionNames())
		}
		o.options.Sections = append(o.options.Sections, section)
	}
	if len(args) == 0 {
		o.options.Sections = fabric.SectionNames()
	}
	if err := checkTimeout(o.timeout); err != nil {
		return err
	}
	if o.peer != "" && o.peerDevice != "" {
		return errors.New("--peer-device is for both ends on one machine; give --device to the `bench fabric --listen` of the other")
	}
	_, noRDMA := fabric.Devices()
	switch o.transport {
	case "tcp":
		o.options.TCP = true
	case "rdma":
		o.options.RDMA = true
	case "both":
		o.options.TCP, o.options.RDMA = true, true
	case "auto":
		if o.options.TCP, o.options.RDMA = true, noRDMA == nil; noRDMA != nil {
			o.note = noRDMA.Error()
		}
	default:
		return fmt.Errorf("--transport %q: use one of auto, tcp, rdma, both", o.transport)
	}
	if o.options.RDMA {
		return noRDMA
	}
	if o.device != "" || o.peerDevice != "" {
		return fmt.Errorf("--device and --peer-device are for RDMA, which is not measured: %w", cmp.Or(noRDMA, errors.New("--transport tcp")))
	}
	return nil
}

func serveFabric(ctx context.Context, o *fabricOptions, args []string) error {
	if len(args) > 0 || o.peer != "" {
		return errors.New("--listen takes neither sections nor --peer: what is measured is said at the other end")
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer fabric.Quiet()()
	fmt.Fprintf(os.Stderr, "serving measurements at %v\n", listener.Addr())
	return fabric.Serve(ctx, listener, o.device)
}

func measureFabric(ctx context.Context, o *fabricOptions, cmd *cobra.Command) (err error) {
	view := newDisplay(os.Stderr)
	defer view.clear()
	origin := about(ctx)
	defer fabric.Quiet()()
	session, err := o.session(ctx)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	stop := context.AfterFunc(ctx, session.Interrupt)
	result, err := fabric.Run(ctx, session, o.options, view.show)
	stop()
	if err := errors.Join(err, session.Close()); err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	view.clear()
	result.Origin = origin
	if o.note != "" {
		result.Notes = append(result.Notes, o.note)
	}
	return publishReport(cmd.OutOrStdout(), o.out, o.json, result)
}

func (o *fabricOptions) session(ctx context.Context) (*fabric.Session, error) {
	if o.peer != "" {
		return fabric.Dial(ctx, o.peer, o.device)
	}
	return fabric.Local(ctx, o.device, o.peerDevice)
}
