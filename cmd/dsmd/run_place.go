package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmd/internal/launch"
	"dsmd/internal/settings"
)

// runPlace are the flags of `run` that say where.
type runPlace struct {
	hosts     []string // as given; each may name several
	hostsFile string
	dir       string
	ssh, dsmd string
	network   string
	timeout   time.Duration
	insecure  bool
	meet      string
}

func (p *runPlace) register(flags *pflag.FlagSet) {
	flags.StringArrayVar(&p.hosts, "hosts", nil, "machines to run on, `HOST` or HOST:SLOTS each, separated by commas, spaces or newlines")
	flags.StringVar(&p.hostsFile, "hosts-file", "", "`FILE` with the machines to run on, one a line")
	flags.StringVar(&p.dir, "dir", "", "working directory of the programs (default: this one)")
	flags.StringVar(&p.ssh, "ssh", "", "ssh `COMMAND` for --hosts, with options, as a shell reads it (default: $"+settings.EnvSSH+", or ssh)")
	flags.StringVar(&p.dsmd, "remote-dsmd", "dsmd", "`PATH` of dsmd on the hosts")
	flags.StringVar(&p.network, "data-network", "", "network of the nodes' connections, as `ADDRESS/BITS` (default: that by which the hosts are reached)")
	flags.DurationVar(&p.timeout, "connect-timeout", launch.DefaultConnectTimeout, "how long to try to reach a host")
	flags.StringVar(&p.meet, "meet", "", "`DIRECTORY` that all machines share, for tasks of Slurm to find each other (default: ~/.dsmd)")
	flags.BoolVar(&p.insecure, "insecure", false, "let the nodes' connections between machines be plain text")
}

// apply completes the configuration of a job. If attend is not nil, this process does that instead
// of running the job.
func (p *runPlace) apply(cmd *cobra.Command, cfg *launch.Config) (attend func() error, err error) {
	flags := cmd.Flags()
	hosts, err := p.readHosts(flags)
	if err != nil {
		return nil, err
	}
	if p.timeout <= 0 {
		return nil, fmt.Errorf("--connect-timeout %v: want a time of more than 0, such as 10s", p.timeout)
	}
	comes := len(hosts) == 0 && !flags.Changed("nodes") // the machines may come by themselves
	if flags.Changed("meet") && (!comes || !slurmStep(os.Getenv)) {
		return nil, errors.New("--meet is for tasks of Slurm: start dsmd run with srun, and without --hosts and -n")
	}
	if task := slurmTask(os.Getenv); comes && task != nil {
		return p.applyMeeting(task, cfg)
	}
	if len(hosts) == 0 {
		if err := checkNodes(cfg.Nodes); err != nil {
			return nil, fmt.Errorf("-n: %w", err)
		}
		for _, name := range []string{"ssh", "remote-dsmd", "data-network", "connect-timeout", "insecure"} {
			if flags.Changed(name) {
				return nil, fmt.Errorf("--%s is for --hosts: this job stays on this machine", name)
			}
		}
		cfg.Dir = p.dir
		return nil, nil
	}
	if flags.Changed("nodes") {
		return nil, errors.New("-n is for this machine; with --hosts each host has one node, and HOST:SLOTS says how many programs")
	}
	if err := checkNodes(len(hosts)); err != nil {
		return nil, fmt.Errorf("--hosts: %w", err)
	}
	if cfg.Dir = p.dir; cfg.Dir == "" {
		if cfg.Dir, err = os.Getwd(); err != nil {
			return nil, fmt.Errorf("the working directory: %w", err)
		}
	}
	ssh := p.ssh
	if ssh == "" {
		ssh = os.Getenv(settings.EnvSSH)
	}
	cfg.Nodes, cfg.Hosts, cfg.Remote = 0, hosts, p.remote()
	cfg.Remote.SSH = ssh
	return nil, nil
}

func (p *runPlace) remote() launch.Remote {
	return launch.Remote{Dsmd: p.dsmd, Version: readVersions().line(), Network: p.network, Insecure: p.insecure, ConnectTimeout: p.timeout}
}

// readHosts reads the hosts that the flags name: none if they are not given.
func (p *runPlace) readHosts(flags *pflag.FlagSet) (hosts []launch.Host, err error) {
	var from string
	switch inFile := flags.Changed("hosts-file"); {
	case inFile && flags.Changed("hosts"):
		return nil, errors.New("--hosts and --hosts-file both name the machines: give one of them")
	case inFile:
		from = fmt.Sprintf("--hosts-file %q", p.hostsFile)
		hosts, err = readHostsFile(p.hostsFile)
	case flags.Changed("hosts"):
		from = "--hosts"
		hosts, err = launch.ParseHosts(strings.FieldsFunc(strings.Join(p.hosts, ","), betweenHosts))
	default:
		return nil, nil
	}
	if err == nil && len(hosts) == 0 {
		err = errors.New("no host in it")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return hosts, nil
}

func betweenHosts(c rune) bool { return c == ',' || unicode.IsSpace(c) }

func readHostsFile(name string) ([]launch.Host, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return launch.ReadHosts(f)
}

// chosen completes the names of environment variables with their values here. A variable that is
// not set is an error: it is more likely misspelt than meant.
func chosen(names []string) (variables []string, err error) {
	for _, name := range names {
		v, err := variable(name)
		if err != nil {
			return nil, err
		}
		variables = append(variables, v)
	}
	return variables, nil
}

// variable completes the name of an environment variable with its value here, unless it has one.
func variable(name string) (string, error) {
	key, _, given := strings.Cut(name, "=")
	switch value, set := os.LookupEnv(key); {
	case key == "":
		return "", fmt.Errorf("%q: write NAME or NAME=VALUE", name)
	case launch.Sets(key):
		return "", fmt.Errorf("%s cannot be given: dsmd run sets it itself, always or where a flag asks for it", key)
	case given:
		return name, nil
	case !set:
		return "", fmt.Errorf("%s is not set here: write %s=VALUE", name, name)
	default:
		return key + "=" + value, nil
	}
}
