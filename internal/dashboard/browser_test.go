package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"dsmd/internal/faultlog"
	"dsmd/internal/require"
	"dsmd/internal/runstats"
)

// page is a page in a browser.
type page struct {
	ctx context.Context
	mu  sync.Mutex
	bad []string // what the page complains of; guarded by mu
}

// start starts a browser without a window. Where there is none it skips the test, or fails it where
// there must be one (browser).
func start(t *testing.T) (browser context.Context) {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if errors.Is(err, exec.ErrNotFound) {
		path, err = exec.LookPath("google-chrome")
	}
	if err != nil {
		require.Missing(t, "browser", "needs Chromium: apt-get install chromium (%v)", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.WindowSize(1280, 800), chromedp.UserDataDir(t.TempDir()),
		chromedp.NoSandbox) // which neither root nor a container has; the page is ours
	allocator, cancelAllocator := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancelAllocator)
	browser, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	if err := chromedp.Do(browser); err != nil {
		t.Fatalf("starting %s: %v", path, err)
	}
	return browser
}

// open shows a server's page in a new tab.
func open(t *testing.T, browser context.Context, s *Server) *page {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	p := &page{ctx: ctx}
	if err := chromedp.Listen(ctx, p.hear); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	p.do(t, chromedp.Navigate(s.URL()), until(`document.querySelector("#memory canvas") !== null`))
	return p
}

// hear takes note of errors.
func (p *page) hear(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		p.bad = append(p.bad, fmt.Sprint(e.ExceptionDetails.Text, e.ExceptionDetails.Exception))
	case *runtime.EventConsoleAPICalled:
		// It says nothing there when all is well.
		p.bad = append(p.bad, fmt.Sprint("console: ", e.Args))
	case *log.EventEntryAdded:
		p.bad = append(p.bad, fmt.Sprintf("%s: %s", e.Entry.Level, e.Entry.Text))
	}
}

func (p *page) do(t *testing.T, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, wait)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatalf("the page: %v; it says %q", err, p.bad)
	}
}

// text is what an expression of the page is.
func (p *page) text(t *testing.T, expression string) string {
	t.Helper()
	text, err := chromedp.Run(p.ctx, chromedp.Evaluate[string](expression))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return text
}

// until waits until an expression of the page is true.
func until(expression string) chromedp.Action[chromedp.Void] {
	return chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingTimeout(wait))
}

// point moves the mouse to a cell of a heat map, and is what is shown there.
func (p *page) point(t *testing.T, grid string, cell int) string {
	t.Helper()
	return p.text(t, fmt.Sprintf(`(() => {
		const g = %s, box = g.canvas.getBoundingClientRect(), cell = %d;
		g.canvas.dispatchEvent(new MouseEvent("mousemove", {
			clientX: box.left + g.left + (cell %% g.columns + 0.5) * g.side, clientY: box.top + g.top + (Math.floor(cell / g.columns) + 0.5) * g.side }));
		return document.getElementById("tip").innerText;
	})()`, grid, cell))
}

// falselyShared is what a sharing report says, as JSON.
const falselyShared = `{"groups": [{"kind": "false sharing", "memory": "counts", "pages": 2, "example": 1, "faults": 3, "waited_ns": 61000000,
	"parties": [{"node": 0, "ranks": [0], "writes": "counts[512..600]", "write_at": ["solve.go:7"]}, {"node": 1, "ranks": [1], "reads": "counts[700]"}],
	"guards": [{"lock": "accounts", "uses": "counts[512]"}], "advice": "pad <b>them</b>"}]}`

// busy is a job with some of everything.
func busy() *Model {
	m := New(Job{Title: "dsmd run -n 2 -- ./solve", Nodes: 2, Ranks: 2, Began: began, Sharing: func() any { return json.RawMessage(falselyShared) }})
	p := runstats.Piece{Memory: []runstats.Allocation{memoryOf("counts", 100, 8)}}
	m.Add(p, after(time.Second))
	f := faultAt(101, faultlog.Write, time.Second, 30*time.Millisecond)
	f.From, f.Taker, f.TakerAccess = 1, 1, faultlog.Write
	read := faultAt(103, faultlog.Read, time.Second, time.Millisecond)
	m.Add(logged(0, 0, f, read), after(time.Second))
	f.From, f.Taker = 0, 0
	p = logged(1, 1, f)
	p.Calls = []runstats.Call{{Kind: runstats.Barrier, Name: "<i>phase</i>", Began: began.UnixNano(), Waited: 400 * time.Millisecond, At: "solve.go:9"}}
	m.Add(p, after(time.Second))
	return m
}

// TestBrowser: what the page does in a browser.
func TestBrowser(t *testing.T) {
	t.Parallel()
	browser := start(t)
	for name, test := range map[string]func(*testing.T, context.Context){"shows": shows, "choices": choices, "server gone": serverGone} {
		t.Run(name, func(t *testing.T) { test(t, browser) })
	}
}

// shows: the page shows what the state has, without an error, and goes on to show what is new.
func shows(t *testing.T, browser context.Context) {
	m := busy()
	s := serve(t, func() State { return m.State(after(2 * time.Second)) })
	p := open(t, browser, s)
	for what, test := range map[string]struct{ expression, want string }{
		"the title":      {`document.title`, "dsmd run -n 2 -- ./solve"},
		"the status":     {`document.getElementById("status").innerText`, "running for 2.00 s · 2 nodes · 2 ranks · 3 faults"},
		"the cells":      {`document.querySelector("#memory canvas").dataset.cells`, "2"},
		"the colours":    {`String(new Set(new Uint32Array(maps[0].grid.canvas.getContext("2d").getImageData(0, 0, 9999, 20).data.buffer)).size > 3)`, "true"},
		"the ranks":      {`document.getElementById("ranks").innerText.replace(/\s+/g, " ")`, "rank 0 1.6 % rank 1 22 %"},
		"the chart":      {`String(document.querySelectorAll("#chart canvas").length)`, "1"},
		"the costs":      {`document.getElementById("costs").innerText`, "<i>phase</i>"},
		"where it waits": {`document.getElementById("costs").innerText`, "solve.go:9"},
		"the sharing": {`document.getElementById("sharing-report").innerText.replace(/\s+/g, " ")`, "false sharing: 2 pages of counts 3 faults, waited 61.0 ms; for example page 1 " +
			"rank 0 writes counts[512..600] (solve.go:7) rank 1 reads counts[700] lock accounts guards counts[512] pad <b>them</b>"},
		"the nodes' matrix": {`document.querySelector("#matrix canvas").dataset.cells`, "2"},
	} {
		if got := p.text(t, test.expression); !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", what, got, test.want)
		}
	}
	for cell, want := range map[int]string{1: "counts[512..1023]\npage 1 of 8\n2 faults: 0 to read, 2 to write, 0 upgrades\nwaited 60.0 ms\nrank 0: 1, rank 1: 1", 7: "counts[3584..4095]\npage 7 of 8\nno fault"} {
		if got := p.point(t, "maps[0].grid", cell); got != want {
			t.Errorf("cell %d is %q, want %q", cell, got, want)
		}
	}
	if got := p.point(t, "matrix", 1); !strings.HasPrefix(got, "node 1 → node 0") {
		t.Errorf("the matrix has %q", got)
	}

	m.Add(logged(0, 0, faultAt(107, faultlog.Read, time.Second, time.Millisecond)), after(time.Second))
	p.do(t, until(`document.querySelector("#memory canvas").dataset.cells === "3"`))
	m.End(after(3 * time.Second))
	p.do(t, until(`document.getElementById("status").innerText.startsWith("ended after 3.00 s")`))
	p.sound(t)
}

// sound fails the test if the page has complained.
func (p *page) sound(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.bad) > 0 {
		t.Errorf("the page complains: %q", p.bad)
	}
}

// choices: what a mouse can do the keyboard can, and choices change what is shown.
func choices(t *testing.T, browser context.Context) {
	m := busy()
	m.End(after(2 * time.Second))
	s := serve(t, func() State { return m.State(after(2 * time.Second)) })
	p := open(t, browser, s)
	p.do(t, chromedp.Focus(chromedp.CSS("#memory canvas")), chromedp.KeyEvent(kb.ArrowRight+kb.ArrowRight))
	if got := p.text(t, `document.getElementById("tip").innerText`); !strings.HasPrefix(got, "counts[512..1023]") {
		t.Errorf("the keys lead to %q", got)
	}
	p.do(t, chromedp.Click(`//button[text()="reads"]`), chromedp.Click(`//button[text()="who has taken it before"]`), chromedp.Click(chromedp.CSS(`#ranks button:nth-child(2)`)))
	for what, test := range map[string]struct{ expression, want string }{
		"cells with reads": {`document.querySelector("#memory canvas").dataset.cells`, "1"},
		"the matrix":       {`document.querySelector("#matrix canvas").dataset.cells`, "2"},
		"the chart's rank": {`document.getElementById("chart-hint").innerText`, "Rank 1"},
		"its barriers":     {`String(parts[2].reduce((a, b) => a + b).toFixed(1))`, "4.0"},
	} {
		if got := p.text(t, test.expression); !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", what, got, test.want)
		}
	}
	light := p.text(t, `getComputedStyle(document.body).backgroundColor`)
	night := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}}
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, night); err != nil {
		t.Fatal(err)
	}
	if dark := p.text(t, `getComputedStyle(document.body).backgroundColor`); dark == light {
		t.Errorf("by night the ground is %s, as by day", dark)
	}
	p.sound(t)
}

// serverGone: when dsmd has ended the page says so, and shows what it has.
func serverGone(t *testing.T, browser context.Context) {
	m := busy()
	s := serve(t, func() State { return m.State(after(2 * time.Second)) })
	p := open(t, browser, s)
	s.Close()
	p.do(t, until(`document.getElementById("note").innerText.includes("If the job has ended")`))
	if got := p.point(t, "maps[0].grid", 1); !strings.HasPrefix(got, "counts[512..1023]") {
		t.Errorf("a cell is %q", got)
	}
}
