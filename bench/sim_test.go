package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dsmd/bench/sim"
	"dsmd/internal/uffd/uffdtest"
)

func TestSim(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "result.json")
	out, err := run(t, "sim", "barriers", "-n", "8", "--send", "10us", "--seed", "7", "--json", file, "--out", dir)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "reduction") || strings.Contains(out, string(sim.Private)) {
		t.Errorf("printed:\n%s", out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var result sim.Result
	if err := json.Unmarshal(text, &result); err != nil || len(result.Sync) != 15 || result.Options.Seed != 7 || result.Options.Costs.Send.Microseconds() != 10 {
		t.Errorf("%v: %s", err, text)
	}
	if _, err := os.Stat(filepath.Join(dir, "sim-barriers.svg")); err != nil {
		t.Error(err)
	}
}

func TestSimRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"there is no section \"weather\"":       {"sim", "weather"},
		"use a power of two from 2":             {"sim", "-n", "3"},
		"--timeout 0s: use a positive duration": {"sim", "--timeout", "0s"},
		"a cost send of -1ns":                   {"sim", "--send", "-1ns"},
		"timed out after 1ns":                   {"sim", "--timeout", "1ns"},
		"--pages 0: use 1 to":                   {"sim", "memory", "--pages", "0"},
		"--runs 0: use 1 to":                    {"sim", "startup", "--runs", "0"},
	} {
		if _, err := run(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("bench %s: %v, want %q", strings.Join(args, " "), err, want)
		}
	}
}

func TestSimMemory(t *testing.T) {
	out, err := run(t, "sim", "memory", "--pages", "70000", "--json", "-")
	var all []sim.Memory
	if err != nil || json.Unmarshal([]byte(out), &all) != nil || len(all) != len(sim.Roles()) || all[0].Pages != 70000 || all[0].RegionPages != 1<<28 {
		t.Errorf("%v:\n%s", err, out)
	}
}

// TestSimStartup: daemons with both sizes of regions start and end. How long they take is not for a
// test to say; that a daemon does not touch memory for every page of its region is.
func TestSimStartup(t *testing.T) {
	uffdtest.Require(t)
	out, err := run(t, "sim", "startup", "--runs", "1", "--json", "-", "--dsmd", dsmdPath)
	var all []Startup
	if err != nil || json.Unmarshal([]byte(out), &all) != nil || len(all) != 2*len(startupRegions) {
		t.Fatalf("%v:\n%s", err, out)
	}
	for _, s := range all {
		if len(s.Seconds) != 1 || s.Median <= 0 || s.ResidentKiB <= 0 {
			t.Errorf("%+v", s)
		}
		// KiB: an eighth of a gigabyte; a byte for each page of 1 TiB would be a quarter
		const most = 1 << 20 / 8
		if s.ResidentKiB > most {
			t.Errorf("a daemon with a region of %s has %d KiB at its start", s.Region, s.ResidentKiB)
		}
	}
}
