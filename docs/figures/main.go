// Command figures draws the pictures of docs from runs on this machine, in Chromium:
//
//	go run ./docs/figures              # all of them
//	go run ./docs/figures flame:fft    # one of them
//
// They are the dashboard of a run of ocean (dashboard); what the threads of a kernel wait for, as go
// tool pprof draws it (flame:KERNEL); what they and the daemons did when, as Perfetto draws it
// (trace:KERNEL); and what they wait for with where the rest of the time went, without a browser
// (waits:KERNEL), which prints a row of the table in performance.md as well.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/chromedp/chromedp"
)

// out is where the pictures go.
const out = "docs/figures"

// all are the figures that the documents have.
var all = []string{
	"dashboard", "flame:fft", "trace:sor",
	"waits:sor", "waits:ocean", "waits:fft", "waits:barnes", "waits:cholesky", "waits:water", "waits:tsp",
}

// wait bounds what a browser or a server takes.
const wait = time.Minute

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

func run(which []string) error {
	if _, err := os.Stat(out); err != nil {
		return fmt.Errorf("it is run at the top of the checkout: %w", err)
	}
	if len(which) == 0 {
		which = all
	}
	dir, err := os.MkdirTemp("", "figures-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	w := &workshop{dir: dir}
	if err := w.build(); err != nil {
		return err
	}
	for _, figure := range which {
		kind, kernel, _ := strings.Cut(figure, ":")
		switch {
		case kind == "dashboard":
			err = w.dashboard()
		case kind == "trace":
			err = w.trace(kernel)
		case kind == "flame":
			err = w.flame(kernel)
		case kind == "waits":
			err = w.waits(kernel)
		default:
			err = errors.New("there is no such figure: dashboard, flame:KERNEL, trace:KERNEL, or waits:KERNEL")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", figure, err)
		}
	}
	return nil
}

// workshop is a directory with the binaries.
type workshop struct{ dir string }

func (w *workshop) path(name string) string { return filepath.Join(w.dir, name) }

func (w *workshop) build() error {
	for _, program := range []string{"cmd/dsmd", "bench"} {
		build := exec.Command("go", "build", "-o", w.path(filepath.Base(program)), "./"+program)
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("building %s: %w", program, err)
		}
	}
	return nil
}

// bench runs a kernel.
func (w *workshop) bench(kernel string, flags ...string) error {
	cmd := exec.Command(w.path("bench"), append([]string{"run", kernel, "--dsmd", w.path("dsmd")}, flags...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// dashboard draws what `dsmd dashboard` serves of a run.
func (w *workshop) dashboard() error {
	file := w.path("state.json")
	if err := w.bench("ocean", "-n", "4", "--dashboard-file", file); err != nil {
		return err
	}
	server := exec.Command(w.path("dsmd"), "dashboard", file)
	stdout, err := server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	defer server.Wait()
	defer server.Process.Kill()
	said := make([]byte, 1000)
	n, err := stdout.Read(said)
	url := regexp.MustCompile(`http://\S+`).Find(said[:n])
	if url == nil {
		return errors.Join(fmt.Errorf("dsmd dashboard says %q", said[:n]), err)
	}
	return shoot("dashboard", 1280, 1010, chromedp.Navigate(string(url)), until(`document.querySelector("#memory canvas") !== null`))
}

// flame draws what the threads of a kernel wait for.
func (w *workshop) flame(kernel string) error {
	file := w.path(kernel + ".profile")
	if err := w.bench(kernel, "--profile", file); err != nil {
		return err
	}
	address, err := freeAddress()
	if err != nil {
		return err
	}
	server := exec.Command("go", "tool", "pprof", "-no_browser", "-http", address, w.path("bench"), file)
	server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with what go starts
	if err := server.Start(); err != nil {
		return err
	}
	defer server.Wait()
	defer syscall.Kill(-server.Process.Pid, syscall.SIGTERM)
	url := "http://" + address + "/ui/flamegraph"
	if err := answers(url); err != nil {
		return err
	}
	return shoot("flame-"+kernel, 1280, 560, chromedp.Navigate(url), until(`document.querySelectorAll(".boxtext").length > 3`))
}

// freeAddress is one of this machine at which nobody listens. pprof does not say which it takes by
// itself.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// answers waits until somebody serves a page.
func answers(url string) error {
	for end := time.Now().Add(wait); ; time.Sleep(100 * time.Millisecond) {
		response, err := http.Get(url)
		if err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			return response.Body.Close()
		}
		if time.Now().After(end) {
			return err
		}
	}
}

// until waits until an expression of the page is true.
func until(expression string) chromedp.Action[chromedp.Void] {
	return chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingTimeout(wait))
}

// shoot draws a page after some steps.
func shoot(name string, width, height int64, steps ...chromedp.Action[chromedp.Void]) error {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return fmt.Errorf("%w: apt-get install chromium", err)
	}
	dir, err := os.MkdirTemp("", "chromium-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.UserDataDir(dir),
		chromedp.NoSandbox) // which neither root nor a container has; the pages are ours
	allocator, cancelAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	defer cancelAllocator()
	browser, cancel := chromedp.NewContext(allocator)
	defer cancel()
	ctx, cancelWait := context.WithTimeout(browser, 2*wait)
	defer cancelWait()
	steps = append([]chromedp.Action[chromedp.Void]{chromedp.EmulateViewport(width, height)}, steps...)
	if err := chromedp.Do(ctx, steps...); err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // what moves has come to rest
	picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, name+".png"), picture, 0o644)
}
