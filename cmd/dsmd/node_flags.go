package main

import (
	"fmt"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"dsmd/internal/settings"
	"dsmd/protocol"
)

// nodeFlags are the settings that `serve` and `run` share. `run` hands them on to the daemons it
// starts.
type nodeFlags struct{ values *settings.Values }

func (f *nodeFlags) register(flags *pflag.FlagSet, logLevel string) {
	f.values = settings.New()
	f.values.LogLevel = logLevel
	f.values.Register(flags, settings.Run)
	flags.Lookup("log-level").DefValue = logLevel
}

// args is the command line that gives a daemon the same settings as these, whatever this machine's
// environment and file say: those are meant for a cluster that a job on one machine has nothing to
// do with.
func (f *nodeFlags) args() []string {
	return append([]string{"--" + bareFlag}, f.values.Args(settings.Run)...)
}

// newLogger makes the log that the settings ask for, on standard error.
func newLogger(v *settings.Values) (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(v.LogLevel)
	if err != nil {
		return nil, err
	}
	cfg := zap.NewProductionConfig()
	cfg.Level = zap.NewAtomicLevelAt(level)
	cfg.Encoding = v.LogFormat
	cfg.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	cfg.DisableStacktrace = true
	// A daemon logs few lines, and when one is missing it is the one that would have explained it.
	cfg.Sampling = nil
	if v.LogFormat == "console" {
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
