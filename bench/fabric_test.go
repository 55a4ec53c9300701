package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dsmd/bench/fabric"
)

// runFabric runs `bench fabric` and returns what it printed, and its error.
func runFabric(args ...string) (string, error) {
	cmd := command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append([]string{"fabric"}, args...))
	err := cmd.Execute()
	return out.String(), err
}

func TestFabric(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "result.json")
	out, err := runFabric("latency", "fetch", "--transport", "tcp", "--sizes", "8,512", "--time", "1ms", "--runs", "1", "--json", file, "--out", dir)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "TCP send") || !strings.Contains(out, "transport/tcp") {
		t.Errorf("printed:\n%s", out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var result fabric.Result
	if err := json.Unmarshal(text, &result); err != nil || len(result.Points) != 2 || len(result.Fetches) != 5 || result.Origin.Command == "" {
		t.Errorf("%v: %s", err, text)
	}
	if _, err := os.Stat(filepath.Join(dir, "fabric-latency.svg")); err != nil {
		t.Error(err)
	}
	out, err = runFabric("latency", "--transport", "tcp", "--sizes", "8", "--time", "1ms", "--json", "-")
	if err != nil || json.Unmarshal([]byte(out), &result) != nil {
		t.Errorf("--json -: %v:\n%s", err, out)
	}
}

func TestFabricRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"there is no section \"weather\"":         {"weather"},
		"--transport \"pigeon\": use one of":      {"--transport", "pigeon"},
		"--timeout 0s: use a positive duration":   {"--timeout", "0s"},
		"use 8 to":                                {"latency", "--transport", "tcp", "--sizes", "1"},
		"are for RDMA, which is not measured":     {"--transport", "tcp", "--device", "x"},
		"give --device to the":                    {"--peer", "a:1", "--peer-device", "x"},
		"--listen takes neither sections":         {"latency", "--listen", "127.0.0.1:0"},
		"does `bench fabric --listen` run there?": {"latency", "--transport", "tcp", "--peer", "127.0.0.1:1"},
	} {
		if out, err := runFabric(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q; printed:\n%s", args, err, want, out)
		}
	}
	// The limit may end anything: what is being measured, or how the ends find each other.
	if _, err := runFabric("latency", "--transport", "tcp", "--time", "10s", "--timeout", "100ms"); !errors.Is(err, errTimeout) {
		t.Errorf("after the time limit: %v", err)
	}
	if _, err := fabric.Devices(); err != nil {
		if _, got := runFabric("latency", "--transport", "rdma"); got == nil || got.Error() != err.Error() {
			t.Errorf("without a device: %v, want %v", got, err)
		}
	}
}
