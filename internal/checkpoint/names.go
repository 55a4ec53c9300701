package checkpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

const (
	manifestPrefix, manifestSuffix = "checkpoint-", ".json"
	partPrefix, partSuffix         = "pages-", ".dsm"
	tempSuffix                     = ".tmp"
	lockName                       = "lock"
)

const (
	// MaxSequence is the highest sequence number. The lowest is 1.
	MaxSequence = 1 << 48
	// MaxRanks bounds the ranks of a job.
	MaxRanks = 1 << 16
)

// ManifestName is the file name of the manifest of a checkpoint.
func ManifestName(sequence uint64) string {
	return fmt.Sprintf("%s%06d%s", manifestPrefix, sequence, manifestSuffix)
}

// PartName is the file name of the part of a checkpoint that a rank wrote.
func PartName(sequence uint64, rank int) string {
	return fmt.Sprintf("%s%06d-%04d%s", partPrefix, sequence, rank, partSuffix)
}

// parseManifestName is the opposite of ManifestName.
func parseManifestName(name string) (sequence uint64, ok bool) {
	text, ok := strings.CutPrefix(name, manifestPrefix)
	if !ok {
		return 0, false
	}
	text, _ = strings.CutSuffix(text, manifestSuffix)
	sequence, err := strconv.ParseUint(text, 10, 64)
	return sequence, err == nil && validSequence(sequence) && name == ManifestName(sequence)
}

// parsePartName is the opposite of PartName.
func parsePartName(name string) (sequence uint64, ok bool) {
	text, ok := strings.CutPrefix(name, partPrefix)
	if !ok {
		return 0, false
	}
	text, _ = strings.CutSuffix(text, partSuffix)
	first, second, _ := strings.Cut(text, "-")
	sequence, err := strconv.ParseUint(first, 10, 64)
	rank, err2 := strconv.ParseUint(second, 10, 16)
	return sequence, err == nil && err2 == nil && validSequence(sequence) && name == PartName(sequence, int(rank))
}

func validSequence(n uint64) bool { return n >= 1 && n <= MaxSequence }

// contents is what of ours lies in a directory.
type contents struct {
	manifests []uint64 // sequences, ascending
	parts     []string
	temporary []string // manifests and parts that were never completed
	highest   uint64   // sequence of any of them, or 0
}

// scan lists a directory.
func scan(dir string) (c contents, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return c, fmt.Errorf("checkpoint: %w", readError("list the directory", dir, err))
	}
	for _, e := range entries {
		name, temporary := strings.CutSuffix(e.Name(), tempSuffix)
		sequence, isManifest := parseManifestName(name)
		if !isManifest {
			var isPart bool
			if sequence, isPart = parsePartName(name); !isPart {
				continue
			}
		}
		c.highest = max(c.highest, sequence)
		switch {
		case temporary:
			c.temporary = append(c.temporary, e.Name())
		case isManifest:
			c.manifests = append(c.manifests, sequence)
		default:
			c.parts = append(c.parts, name)
		}
	}
	slices.Sort(c.manifests)
	return c, nil
}
