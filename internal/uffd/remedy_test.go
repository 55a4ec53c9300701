package uffd

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRemedyNamesTheSetting: each way to fail that we know has a remedy that names what to change.
func TestRemedyNamesTheSetting(t *testing.T) {
	for _, c := range []struct {
		mode  Mode
		err   error
		names string
	}{
		{ModeSyscall, unix.EPERM, "vm.unprivileged_userfaultfd=1"},
		{ModeSyscall, unix.EPERM, "CAP_SYS_PTRACE"},
		{ModeSyscall, unix.ENOSYS, "CONFIG_USERFAULTFD"},
		{ModeSyscall, unix.EMFILE, "ulimit -n"},
		{ModeDevice, unix.ENOENT, "6.1"},
		{ModeDevice, unix.EACCES, "chgrp"},
		{ModeUserOnly, unix.EPERM, "seccomp"},
		{ModeUserOnly, unix.EINVAL, "5.11"},
		{ModeUserOnly, ErrFeatures, "newer kernel"},
		{ModeUserOnly, unix.EIO, "docs/kernel.md"},
	} {
		if got := remedy(c.mode, fmt.Errorf("try: %w", c.err)); !strings.Contains(got, c.names) {
			t.Errorf("%v failing with %v: the remedy %q does not name %q", c.mode, c.err, got, c.names)
		}
	}
}

func TestFeatureNames(t *testing.T) {
	if got := (FeatureMinorShmem | FeatureWP | 1<<40).String(); got != "PAGEFAULT_FLAG_WP MINOR_SHMEM 0x10000000000" {
		t.Errorf("features read %q", got)
	}
	if got := Features(0).String(); got != "none" {
		t.Errorf("no features read %q", got)
	}
	if got := Needed.since(); got != "5.19" {
		t.Errorf("the needed features are there since %s, want 5.19", got)
	}
}
