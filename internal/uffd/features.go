package uffd

import (
	"fmt"
	"strings"
)

// Features is a set of userfaultfd features, as UFFDIO_API reports and accepts them.
type Features uint64

// The features that this project asks for. The number after each is the Linux version that brought
// it.
const (
	FeatureWP           Features = 1 << 0  // write-protect faults are told apart (5.7)
	FeatureMissingShmem Features = 1 << 5  // missing pages of a memfd trap (4.11)
	FeatureThreadID     Features = 1 << 8  // messages name the faulting thread (4.14)
	FeatureMinorShmem   Features = 1 << 10 // pages present but not mapped trap (5.14)
	FeatureExactAddress Features = 1 << 11 // messages carry the address unrounded (5.18)
	FeatureWPShmem      Features = 1 << 12 // write protection of a memfd's pages (5.19)
	// write protection sticks to unpopulated anonymous pages (6.4)
	FeatureWPUnpopulated Features = 1 << 13
	FeaturePoison        Features = 1 << 14 // a page can be made to raise SIGBUS (6.6)
)

const (
	// Needed are the features without which the uffd back end can't work.
	Needed = FeatureWP | FeatureMissingShmem | FeatureMinorShmem | FeatureWPShmem
	// Wanted are features that make it better where they exist.
	Wanted = FeatureThreadID | FeatureExactAddress | FeatureWPUnpopulated | FeaturePoison
)

// featureNames are the features by the Linux version that brought them.
var featureNames = []struct {
	bit   Features
	name  string
	since string
}{
	{FeatureMissingShmem, "MISSING_SHMEM", "4.11"},
	{FeatureThreadID, "THREAD_ID", "4.14"},
	{FeatureWP, "PAGEFAULT_FLAG_WP", "5.7"},
	{FeatureMinorShmem, "MINOR_SHMEM", "5.14"},
	{FeatureExactAddress, "EXACT_ADDRESS", "5.18"},
	{FeatureWPShmem, "WP_HUGETLBFS_SHMEM", "5.19"},
	{FeatureWPUnpopulated, "WP_UNPOPULATED", "6.4"},
	{FeaturePoison, "POISON", "6.6"},
}

// String lists the kernel's names of the features that this project knows, and the number of the
// rest.
func (f Features) String() string {
	var names []string
	for _, n := range featureNames {
		if f&n.bit != 0 {
			names = append(names, n.name)
			f &^= n.bit
		}
	}
	if f != 0 {
		names = append(names, fmt.Sprintf("%#x", uint64(f)))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, " ")
}

// since is the oldest Linux version that has all of f, as far as this project knows them.
func (f Features) since() string {
	newest := "4.11"
	for _, n := range featureNames {
		if f&n.bit != 0 {
			newest = n.since
		}
	}
	return newest
}
