package main

import (
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// A display shows people how far a command is, on standard error, and nothing if that is not a
// terminal. That it can't be drawn is no reason to stop measuring, so its errors are left alone.
// Its methods may be called by one goroutine at a time.
type display struct {
	bar   *progressbar.ProgressBar // nil: show nothing
	phase string
	total int
}

func newDisplay(stderr *os.File) *display {
	if !term.IsTerminal(int(stderr.Fd())) {
		return &display{}
	}
	return &display{bar: newBar(stderr)}
}

func newBar(w io.Writer) *progressbar.ProgressBar {
	return progressbar.NewOptions(1,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(30),
		progressbar.OptionSetDescription("starting"),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(false),
	)
}

// show says what is being done, and how much of it is. A total of 0 is a phase without steps.
func (d *display) show(phase string, done, total int) {
	if d.bar == nil {
		return
	}
	if phase != d.phase || total != d.total {
		d.phase, d.total = phase, total
		_ = d.bar.Clear() // else the end of a longer description would stay
		d.bar.Reset()
		d.bar.ChangeMax(max(total, 1))
		d.bar.Describe(phase)
	}
	// The bar would vanish when it is full, so the last step is left to the next phase.
	_ = d.bar.Set(min(done, max(total, 1)-1))
}

// clear removes the display for good: what is printed after that would mix with it.
func (d *display) clear() {
	if d.bar != nil {
		_ = d.bar.Clear()
		d.bar = nil
	}
}
