package main

import (
	"fmt"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"dsmd/internal/launch"
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

// apply gives the daemons of a job the same settings as these, whatever this machine's environment
// and file say: those are meant for a cluster that a job on one machine has nothing to do with.
// Nodes of one machine share its memory and processors.
func (f *nodeFlags) apply(cfg *launch.Config) error {
	v := *f.values
	if v.Memory == settings.AutoMemory && cfg.Nodes > 0 {
		bytes, err := v.MemoryBytes(cfg.Nodes)
		if err != nil {
			return err
		}
		v.Memory = settings.Bytes(bytes)
	}
	if cfg.Nodes > 0 {
		v.Reactors = v.MostReactors(cfg.Nodes)
	}
	cfg.BareDaemonLog = v.LogFormat == "json"
	cfg.DaemonFlags = append([]string{"--" + bareFlag}, v.Args(settings.Run)...)
	if cfg.Survive = v.Survive; cfg.Survive {
		// Nobody would come whom they could wait for.
		cfg.DaemonFlags = append(cfg.DaemonFlags, "--no-quorum=end")
	}
	return nil
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
