package modelcheck

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dsmd/protocol/model"
)

var update = flag.Bool("update", false, "rewrite the results in testdata")

// TestScenarios replays every story in testdata and compares what follows from each action.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in testdata: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s, err := model.ParseScenario(string(want))
			if err != nil {
				t.Fatal(err)
			}
			got, v, err := s.Run()
			if err != nil {
				t.Fatal(err)
			}
			if planted := s.Config.Plant != model.NoPlant || s.Config.Hold == 0; planted != (v != nil) {
				t.Errorf("planted bug %v, hold %d, and violation %v", s.Config.Plant, s.Config.Hold, v)
			}
			compareFile(t, file, got)
		})
	}
}

// compareFile compares text with a file in testdata, or rewrites the file.
func compareFile(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s tells another story now; if it is the right one, run with -update.\ngot:\n%s\nwant:\n%s", file, got, want)
	}
}

func TestParseScenarioRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no separator":      "nodes 2\n",
		"no nodes":          "pages 1\nstripe 1\n---\n",
		"unknown setting":   "nodes 2\npages 1\nstripe 1\ncolour 3\n---\n",
		"unknown operation": "nodes 2\npages 1\nstripe 1\nthread 0 1: poke 0\n---\n",
		"operation alone":   "nodes 2\npages 1\nstripe 1\nthread 0 1: read\n---\n",
		"cancelled read":    "nodes 2\npages 1\nstripe 1\nthread 0 1: read 0 cancel 1\n---\n",
		"thread beyond":     "nodes 2\npages 1\nstripe 1\nthread 2 1: read 0\n---\n",
		"page beyond":       "nodes 2\npages 1\nstripe 1\nthread 0 1: read 1\n---\n",
		"client zero":       "nodes 2\npages 1\nstripe 1\nthread 0 0: read 0\n---\n",
		"unknown plant":     "nodes 2\npages 1\nstripe 1\nplant tulip\n---\n",
	} {
		t.Run(name, func(t *testing.T) {
			if s, err := model.ParseScenario(text); !errors.Is(err, model.ErrSyntax) {
				t.Errorf("parsed to %+v with error %v, want ErrSyntax", s, err)
			}
		})
	}
}

// TestRunSaysWhatIsPossible: a story that can not happen is an error that shows what can.
func TestRunSaysWhatIsPossible(t *testing.T) {
	s, err := model.ParseScenario("nodes 2\npages 1\nstripe 1\nthread 1 1: read 0\n---\nn1.t0 read 0\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err = s.Run(); err == nil || !strings.Contains(err.Error(), "n1.t0 fault: read 0") {
		t.Errorf("error %v does not name the action that is possible", err)
	}
}
