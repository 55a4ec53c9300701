package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"
)

// deployed reads a file of docs/deploy.
func deployed(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs/deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestMonitoringNamesWhatIsExported: each metric that the dashboard and the alerts ask for is one
// that a daemon has. Told only a port, it serves them to this machine alone.
func TestMonitoringNamesWhatIsExported(t *testing.T) {
	cmd := dsmd(t, "serve", "--socket", filepath.Join(t.TempDir(), "s"), "--metrics", ":0", "--log-format", "json")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log := bufio.NewReader(stderr)
	at := regexp.MustCompile(`metrics are served.*"address":"([^"]*)"`)
	var m []string
	for m == nil {
		m = at.FindStringSubmatch(next(t, log))
	}
	if !strings.HasPrefix(m[1], "127.0.0.1:") {
		t.Errorf("metrics are served at %s", m[1])
	}
	for serving := false; !serving; { // from then on all metrics are registered
		serving = strings.Contains(next(t, log), `"serving"`)
	}
	exported := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z_]+)[{ ]`).FindAllStringSubmatch(get(t, "http://"+m[1]+"/metrics"), -1) {
		exported[m[1]] = true
	}
	if !exported["dsmd_wait_seconds_total"] || exported["dsmd_"] {
		t.Fatalf("exported are %v", exported)
	}
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for metric := range exported {
		metric = regexp.MustCompile("_(bucket|sum|count)$").ReplaceAllString(metric, "")
		if strings.HasPrefix(metric, "dsmd_") && !strings.Contains(string(text), "`"+metric) {
			t.Errorf("docs/metrics.md says nothing of %s", metric)
		}
	}
	for _, name := range []string{"grafana-dashboard.json", "prometheus-rules.yml", "prometheus-rules.test.yml"} {
		asked := regexp.MustCompile(`\bdsmd_[a-z_]+`).FindAllString(deployed(t, name), -1)
		if len(asked) < 10 {
			t.Errorf("%s asks for %v", name, asked)
		}
		for _, metric := range asked {
			if !exported[metric] {
				t.Errorf("%s asks for %s, which no daemon has", name, metric)
			}
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, log)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// source is where a panel takes its values from.
type source struct{ Type, UID string }

// TestGrafanaDashboard: each panel says what it shows, in which unit, from the data source that the
// user chooses, and lies in a place of its own.
func TestGrafanaDashboard(t *testing.T) {
	type place struct{ X, Y, W, H int }
	var board struct {
		SchemaVersion int
		UID, Title    string
		Templating    struct {
			List []struct{ Name, Type string }
		}
		Panels []struct {
			ID                       int
			Type, Title, Description string
			GridPos                  place
			Datasource               source
			FieldConfig              struct{ Defaults struct{ Unit string } }
			Targets                  []struct{ RefID, Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal([]byte(deployed(t, "grafana-dashboard.json")), &board); err != nil {
		t.Fatal(err)
	}
	if board.SchemaVersion < 39 || board.UID == "" || board.Title == "" || len(board.Panels) < 10 {
		t.Errorf("%+v", board)
	}
	if v := board.Templating.List; len(v) == 0 || v[0].Name != "datasource" || v[0].Type != "datasource" {
		t.Errorf("the data source cannot be chosen: %+v", v)
	}
	ids, places := map[int]bool{}, map[place]bool{}
	for _, p := range board.Panels {
		if p.Type == "" || p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 || p.Datasource != (source{"prometheus", "${datasource}"}) {
			t.Errorf("a panel lacks something: %+v", p)
		}
		if at := p.GridPos; ids[p.ID] || places[at] || at.X+at.W > 24 || at.W <= 0 || at.H <= 0 {
			t.Errorf("panel %d lies at %+v, where another is, or nothing can be", p.ID, at)
		}
		ids[p.ID], places[p.GridPos] = true, true
		for i, target := range p.Targets {
			if target.RefID != string(rune('A'+i)) || target.LegendFormat == "" || strings.Count(target.Expr, "(") != strings.Count(target.Expr, ")") || !strings.Contains(target.Expr, `instance=~"$instance"`) {
				t.Errorf("panel %q: target %+v", p.Title, target)
			}
		}
	}
}

// TestEveryAlertIsTested: each alert says how bad it is and what to do, and a test of the rules,
// which promtool makes, expects it.
func TestEveryAlertIsTested(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	var tests struct {
		Files []string `yaml:"rule_files"`
		Tests []struct {
			Alerts []struct {
				Name   string           `yaml:"alertname"`
				Expect []map[string]any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal([]byte(deployed(t, "prometheus-rules.yml")), &rules); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(deployed(t, "prometheus-rules.test.yml")), &tests); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(tests.Files, []string{"prometheus-rules.yml"}) {
		t.Errorf("the tests are of %v", tests.Files)
	}
	expected := map[string]bool{}
	for _, test := range tests.Tests {
		for _, a := range test.Alerts {
			expected[a.Name] = expected[a.Name] || len(a.Expect) > 0
		}
	}
	for _, r := range rules.Groups[0].Rules {
		if !expected[r.Alert] {
			t.Errorf("no test expects %s", r.Alert)
		}
		if r.Expr == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s lacks something: %+v", r.Alert, r)
		}
	}
}
