package dashboard

import "time"

const (
	// maxBins bounds the points of a timeline: when the last one is reached, two become one.
	maxBins = 600
	// firstBin is how long a point is at first: about as often ranks send pieces.
	firstBin = 100 * time.Millisecond
)

// timeline is how long ranks have waited in each bin of time since the job began.
type timeline struct {
	width time.Duration // of a bin
	bins  [][]kinds     // by group of ranks; those of a group are as many as have been used
}

func newTimeline(groups int) timeline {
	return timeline{width: firstBin, bins: make([][]kinds, groups)}
}

// add adds a wait from begin to end, both since the job began. What lies before that is left out.
func (t *timeline) add(group, kind int, begin, end time.Duration) {
	begin = max(begin, 0)
	if end <= begin {
		return
	}
	for end > t.width*maxBins {
		t.halve()
	}
	for len(t.bins[group]) < int((end+t.width-1)/t.width) {
		t.bins[group] = append(t.bins[group], kinds{})
	}
	for i := int(begin / t.width); begin < end; i++ {
		next := min(end, time.Duration(i+1)*t.width)
		t.bins[group][i][kind] += float64(next - begin)
		begin = next
	}
}

// halve makes bins twice as wide.
func (t *timeline) halve() {
	t.width *= 2
	for g, bins := range t.bins {
		for i := range bins {
			for k := range bins[i] {
				if i%2 == 0 {
					bins[i/2][k] = bins[i][k]
				} else {
					bins[i/2][k] += bins[i][k]
				}
			}
		}
		t.bins[g] = bins[:(len(bins)+1)/2]
	}
}
