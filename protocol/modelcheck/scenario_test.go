package modelcheck

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"dsmd/protocol/model"
)

var update = flag.Bool("update", false, "rewrite the results in testdata")

// TestScenarios replays all scenarios in testdata and compares what follows from each action. Those
// in stories end well, those in planted in a violation.
func TestScenarios(t *testing.T) {
	for _, folder := range []string{"stories", "planted"} {
		files := scenarios(t, folder)
		for _, file := range files {
			t.Run(folder+"/"+strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
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
				if (v != nil) != (folder == "planted") {
					t.Errorf("violation %v", v)
				}
				compareFile(t, file, got)
			})
		}
	}
}

// scenarios are the files in a folder of testdata, in order.
func scenarios(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", folder, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in %s: %v", folder, err)
	}
	return files
}

// TestStoriesAreListed: the page about the stories lists all of them in reading order, and each
// begins with some sentences that say what to watch.
func TestStoriesAreListed(t *testing.T) {
	index, err := os.ReadFile("../../docs/stories.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed, files []string
	for _, m := range regexp.MustCompile(`\(\.\./protocol/modelcheck/testdata/stories/([^)]*)\)`).FindAllStringSubmatch(string(index), -1) {
		listed = append(listed, m[1])
	}
	for _, file := range scenarios(t, "stories") {
		files = append(files, filepath.Base(file))
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if intro, _, _ := strings.Cut(string(text), "\nnodes "); strings.Count(intro, "\n# ") < 1 || strings.Count(intro, ". ")+strings.Count(intro, ".\n") < 1 {
			t.Errorf("%s begins with %q, and should with two sentences or more that say what to watch", file, intro)
		}
	}
	if !slices.Equal(listed, files) {
		t.Errorf("docs/stories.md lists\n%q, and there are\n%q", listed, files)
	}
	if len(files) < 25 {
		t.Errorf("%d stories", len(files))
	}
}

// TestDotsStandForWhatFollows: they are replaced by actions, so that the text replays without them,
// and comments stay where they are.
func TestDotsStandForWhatFollows(t *testing.T) {
	const text = "nodes 2\npages 2\nstripe 1\nthread 0 1: write 1; write 1\nthread 1 1: read 0\n---\nn0.t0 fault: write 1\n# It comes.\n...\nn0.t0 write 1\n"
	tell := func(text string) string {
		s, err := model.ParseScenario(text)
		if err != nil {
			t.Fatal(err)
		}
		got, v, err := s.Run()
		if err != nil || v != nil {
			t.Fatal(v, err)
		}
		return got
	}
	once := tell(text)
	if again := tell(once); again != once {
		t.Errorf("replays as\n%s\nand was\n%s", again, once)
	}
	for _, want := range []string{"\n# It comes.\ndeliver Request n0>n1", "\nn0 complete install page:1\nn0.t0 write 1\n", "\n= under way\n"} {
		if !strings.Contains(once, want) {
			t.Errorf("%q is not in\n%s", want, once)
		}
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
