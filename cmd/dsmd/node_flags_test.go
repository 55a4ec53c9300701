package main

import (
	"slices"
	"testing"

	"github.com/spf13/pflag"

	"dsmd/internal/launch"
)

// TestRunHandsOnTheNetwork: the daemons of a job emulate what `run` was asked for.
func TestRunHandsOnTheNetwork(t *testing.T) {
	var shared nodeFlags
	flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
	shared.register(flags, "warn")
	if err := flags.Parse([]string{"--emulate-latency", "10us", "--emulate-bandwidth", "2.5Gbit"}); err != nil {
		t.Fatal(err)
	}
	cfg := launch.Config{Nodes: 2}
	if err := shared.apply(&cfg); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--emulate-latency=10µs", "--emulate-bandwidth=2500Mbit"} {
		if !slices.Contains(cfg.DaemonFlags, want) {
			t.Errorf("the daemons get %q, which lacks %s", cfg.DaemonFlags, want)
		}
	}
}
