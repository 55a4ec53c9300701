package parallel

import (
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"dsmd/dsm"
)

// progressEvery is the time between two looks at how far the ranks are, and that before the first.
// Only tests change it.
var progressEvery = time.Second

// Progress has rank 0 show how far loops of the team are, if its standard error is a terminal, or
// `dsmd run` shows it on one and says so (DSM_TERMINAL): a bar, called what, with how many items of
// all ranks are done, at which rate, and how long the rest will take at that rate. It goes away
// with the loop. What else is printed meanwhile mixes with it. Loops that end within a second show
// nothing, nor do those whose standard error goes anywhere else.
//
// While a bar is shown rank 0 looks each second at what the others have done: a page from each,
// which that rank takes back at its next chunk. Else nothing travels.
func Progress(what string) Option { return func(t *crew) { t.progress = what } }

// show shows how far the loop over n items is, until stop is called. That it can't be drawn is no
// reason to stop the loop, so errors are left alone.
func (l *loop) show(n int) (stop func()) {
	if l.t.progress == "" || l.t.index != 0 || !onTerminal() {
		return func() {}
	}
	bar := progressbar.NewOptions(n,
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetWidth(30),
		progressbar.OptionSetDescription(l.t.progress),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(),
		progressbar.OptionSetPredictTime(true),
	)
	bar.StartWithoutRender()
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		most := 0 // ranks that have left the loop count no more
		for {
			select {
			case <-over:
				_ = bar.Clear()
				return
			case <-tick.C:
				most = max(most, l.done())
				_ = bar.Set(min(most, n-1)) // a full one would end its line
			}
		}
	}()
	return func() {
		close(over)
		<-ended
	}
}

func onTerminal() bool {
	return os.Getenv("DSM_TERMINAL") == "1" || term.IsTerminal(int(os.Stderr.Fd()))
}

// done is how many items all ranks have run. Those of a rank whose slot is lost count no more.
func (l *loop) done() (sum int) {
	for i := range l.t.size {
		_ = dsm.Guard(func() { sum += l.t.slots.At(i).ran.of(l.number) })
	}
	return sum
}
