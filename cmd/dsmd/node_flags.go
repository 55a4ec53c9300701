package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"dsmd/node"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// nodeFlags are the flags that `serve` and `run` share. `run` hands them on to the daemons it starts.
type nodeFlags struct {
	trap, transport string
	region          byteSize
	hold, spin      time.Duration
	logLevel        string
	logFormat       string
}

func (f *nodeFlags) register(flags *pflag.FlagSet, logLevel string) {
	f.region = node.DefaultRegionBytes
	flags.StringVar(&f.trap, "trap", "auto", "how page faults are trapped: uffd, sigsegv (slower; where userfaultfd is forbidden), or auto, which chooses")
	flags.StringVar(&f.transport, "transport", "auto", "how pages move between nodes: auto or tcp (rdma is planned)")
	flags.Var(&f.region, "region", "address space for shared memory, up to 16TiB, the same on all nodes; memory is used when it is touched")
	flags.DurationVar(&f.hold, "hold", 0, "how long a page that has just arrived is kept at least (0: the default)")
	flags.DurationVar(&f.spin, "spin", 0, "how long the daemon polls at most before it sleeps (0: the default, negative: never)")
	flags.StringVar(&f.logLevel, "log-level", logLevel, "what is logged: debug, info, warn or error")
	flags.StringVar(&f.logFormat, "log-format", "console", "how it is logged: console or json")
}

// check finds mistakes before anything is started.
func (f *nodeFlags) check() error {
	if !slices.Contains(pagetable.TrapNames, f.trap) {
		return fmt.Errorf("--trap %s: there is no such trap; available are %s", f.trap, strings.Join(pagetable.TrapNames, ", "))
	}
	switch f.transport {
	case "auto", "tcp":
	case "rdma":
		return fmt.Errorf("--transport rdma: this build does not have the RDMA transport yet; available is tcp, which auto chooses")
	default:
		return fmt.Errorf("--transport %s: there is no such transport; available are auto and tcp", f.transport)
	}
	page := byteSize(os.Getpagesize())
	switch {
	case f.region%page != 0:
		return fmt.Errorf("--region %s: not a whole number of pages of %d bytes", f.region.String(), page)
	case f.region == 0 || f.region > node.MaxRegionBytes:
		return fmt.Errorf("--region %s: 1 page (%d bytes) to 16TiB are possible", f.region.String(), page)
	case f.hold < 0:
		return fmt.Errorf("--hold %v is negative", f.hold)
	case f.logFormat != "console" && f.logFormat != "json":
		return fmt.Errorf("--log-format %s: there are console and json", f.logFormat)
	}
	if _, err := zapcore.ParseLevel(f.logLevel); err != nil {
		return fmt.Errorf("--log-level %s: there are debug, info, warn and error", f.logLevel)
	}
	return nil
}

// args is the command line that makes a daemon's flags the same as these.
func (f *nodeFlags) args() []string {
	return []string{"--trap", f.trap, "--transport", f.transport, "--region", f.region.String(),
		"--hold", f.hold.String(), "--spin", f.spin.String(), "--log-level", f.logLevel, "--log-format", f.logFormat}
}

// logger makes the log that the flags ask for, on standard error. Preconditions: check has returned nil.
func (f *nodeFlags) logger() (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(f.logLevel)
	if err != nil {
		return nil, err
	}
	cfg := zap.NewProductionConfig()
	cfg.Level = zap.NewAtomicLevelAt(level)
	cfg.Encoding = f.logFormat
	cfg.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	cfg.DisableStacktrace = true
	// A daemon logs few lines, and when one is missing it is the one that would have explained it.
	cfg.Sampling = nil
	if f.logFormat == "console" {
		cfg.DisableCaller = true
		cfg.EncoderConfig.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		cfg.EncoderConfig.ConsoleSeparator = " "
	}
	return cfg.Build()
}

// checkNodes bounds the size of a cluster.
func checkNodes(n int) error {
	if n < 1 || n > protocol.MaxNodes {
		return fmt.Errorf("%d nodes: 1 to %d are possible", n, protocol.MaxNodes)
	}
	return nil
}
