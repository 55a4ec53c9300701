package settings

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"dsmd/pagetable"
)

var update = flag.Bool("update", false, "rewrite the table in docs/configuration.md")

// TestDocumentation compares the table that people read with the one that counts.
func TestDocumentation(t *testing.T) {
	const file = "../../docs/configuration.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- settings: go test ./internal/settings -update -->\n", "<!-- end of settings -->\n"
	before, rest, ok := strings.Cut(string(text), begin)
	table, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", file)
	}
	if table == markdown() {
		return
	}
	if !*update {
		t.Fatalf("%s shows another table; rewrite it with go test ./internal/settings -update", file)
	}
	if err := os.WriteFile(file, []byte(before+begin+markdown()+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// write makes a configuration file.
func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dsmd.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// load reads settings from a command line, a file and an environment.
func load(t *testing.T, args []string, file string, env map[string]string) (*Values, error) {
	t.Helper()
	v := New()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	v.Register(flags, Serve)
	if err := flags.Parse(args); err != nil {
		return v, err
	}
	return v, v.Load(flags, Sources{File: file, Lookup: func(name string) (string, bool) {
		s, ok := env[name]
		return s, ok
	}})
}

// TestPrecedence: flag, environment, file, default; and it is known which it was.
func TestPrecedence(t *testing.T) {
	file := write(t, "# comment\nregion: 1GiB\nhold: 30µs\njoin: [a, b:7]\nid: 2\ninsecure: yes\n")
	v, err := load(t, []string{"--region", "4GiB", "--join=x", "--join=y,z"}, file, map[string]string{"DSMD_REGION": "2GiB", "DSMD_HOLD": "40µs", "DSMD_LOG_LEVEL": "debug"})
	if err == nil || !strings.Contains(err.Error(), file+":6: insecure") {
		t.Errorf("YAML 1.1's yes is no truth: %v", err)
	}
	file = write(t, "# comment\nregion: 1GiB\nhold: 30µs\njoin: [a, b:7]\nid: 2\ninsecure: true\n")
	if v, err = load(t, []string{"--region", "4GiB", "--join=x", "--join=y,z"}, file, map[string]string{"DSMD_REGION": "2GiB", "DSMD_HOLD": "40µs", "DSMD_LOG_LEVEL": "debug"}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]string{
		"region":    {"4GiB", "flag --region"},
		"join":      {"x,y,z", "flag --join"},
		"hold":      {"40µs", "environment DSMD_HOLD"},
		"log-level": {"debug", "environment DSMD_LOG_LEVEL"},
		"id":        {"2", file + ":5"},
		"insecure":  {"true", file + ":6"},
		"cluster":   {"default", "default"},
	} {
		if got := [2]string{v.Text(name), v.Origin(name)}; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if v, err = load(t, nil, file, map[string]string{"DSMD_JOIN": "e"}); err != nil || !slices.Equal(v.Join, []string{"e"}) {
		t.Errorf("a list in the environment replaces the file's: %q, %v", v.Join, err)
	}
}

// TestMistakesInFiles: each is named with its line, and what is allowed.
func TestMistakesInFiles(t *testing.T) {
	for text, want := range map[string]string{
		"nods: 3":                                ":1: nods: there is no such setting: did you mean nodes?",
		"log_level: info":                        "did you mean log-level?",
		"cluster: a\n\nfrobnicate: 1":            ":3: frobnicate: there is no such setting (dsmd config check",
		"nodes: many":                            `:1: nodes: "many" is not possible: 1 to 1024`,
		"nodes: 0":                               "1 to 1024",
		"nodes: 1025":                            "1 to 1024",
		"nodes: [1, 2]":                          `"1,2" is not possible`,
		"id: -1":                                 "0 to 1023, or auto",
		"region: 17TiB":                          "to 16TiB",
		"region: 4097":                           "not a whole number of pages",
		"hold: 20":                               "no duration",
		"hold: 1h":                               "1µs to 20ms",
		"emulate-latency: -1ms":                  "-1ms is not possible: 0s to 1s",
		"emulate-latency: 2s":                    "0s to 1s",
		"emulate-bandwidth: 0bit":                "0bit is not possible: 1Mbit to 1Tbit, or unlimited",
		"emulate-bandwidth: 10":                  `"10" is no rate`,
		"trap: none":                             "available are auto, uffd, sigsegv",
		"insecure: maybe":                        "neither true nor false",
		"cluster: \"a b\"":                       "without spaces",
		"listen: host":                           "has no port",
		"socket: \"@\"":                          "no name of a socket",
		"trap: auto\ntrap: uffd":                 ":2: trap: it is set twice, the first time at ",
		"trap:":                                  "it has no value",
		"trap: {a: b}":                           "neither plain nor a list",
		"join: [a, [b]]":                         "not plain",
		"join: [\"a,b\"]":                        "has a comma",
		"- a\n- b":                               ":1: the file is not a list of `name: value`",
		"a: b: c":                                "mapping values are not allowed",
		"nodes: 3\n---\ninsecure: true":          ":2: a second document begins here",
		"---\nnodes: 3\n...\n# more\n---\nid: 2": ":5: a second document begins here",
		"nodes: 3\n--- \n":                       ":2: a second document begins here",
		"nodes: 3\n---\na: b: c":                 "mapping values are not allowed",
		"join: [" + strings.Repeat("a, ", 4097) + "a]": "at most 4096",
		strings.Repeat("#", maxFileBytes+1):            "more than 1048576 bytes",
	} {
		file := write(t, text)
		_, err := load(t, nil, file, nil)
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
	_, err := load(t, nil, write(t, "a: 1\nb: 2\nnodes: 0"), map[string]string{"DSMD_ID": "x"})
	for _, want := range []string{":1: a", ":2: b"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	// Also what counts for nothing must be right.
	if _, err := load(t, []string{"--nodes=2"}, write(t, "nodes: 0"), nil); err == nil {
		t.Error("a wrong value under a flag is taken")
	}
	if _, err := load(t, nil, "", map[string]string{"DSMD_NODES": "x"}); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "environment DSMD_NODES: nodes:") {
		t.Error(err)
	}
	if _, err := load(t, nil, "/no/such/file", nil); !errors.Is(err, ErrConfig) || !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if v, err := load(t, nil, write(t, "# nothing\n"), nil); err != nil || v.Region != New().Region {
		t.Errorf("an empty file: %v", err)
	}
	if v, err := load(t, nil, write(t, "# a comment\n---\nid: 3\nlog-level: debug # ---\n...\n# the end\n"), nil); err != nil || v.ID != 3 {
		t.Errorf("a file of one document, with its marks: %v", err)
	}
}

// TestTableIsWhole: every setting has all that people must know, its default is possible, and what
// is printed can be read back: `run` hands it on so.
func TestTableIsWhole(t *testing.T) {
	v := New()
	again := New()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	again.Register(flags, Serve)
	if err := flags.Parse(v.Args(Serve)); err != nil {
		t.Fatal(err)
	}
	for i := range All {
		s := &All[i]
		if s.Range == "" || s.Meaning == "" || unit(s) == "" || s.Default != "" && s.Derived != "" {
			t.Errorf("%s: %+v", s.Name, s)
		}
		if v.Text(s.Name) != again.Text(s.Name) {
			t.Errorf("%s: %q is read back as %q", s.Name, v.Text(s.Name), again.Text(s.Name))
		}
		if flags.Lookup(s.Name) == nil || lookup(s.Name) != s {
			t.Errorf("%s is no flag, or there twice", s.Name)
		}
	}
	run := pflag.NewFlagSet("run", pflag.ContinueOnError)
	New().Register(run, Run)
	if run.Lookup("trap") == nil || run.Lookup("join") != nil {
		t.Error("run has not the flags that it shares")
	}
}

func TestUnknownVariables(t *testing.T) {
	got := Unknown([]string{"HOME=/", "DSMD_NODES=3", "DSMD_LOG_LEVEL=info", "DSMD_NODS=3", "DSMD_=x", EnvConfig + "=/etc/d.yaml", EnvSSH + "=ssh -p 22"})
	if want := []string{"DSMD_NODS", "DSMD_"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestReactors: there are as many as the processors suggest, unless something forbids it.
func TestReactors(t *testing.T) {
	trap := pagetable.Choose(pagetable.TrapAuto).Trap
	for _, test := range []struct {
		processors, nodes int
		args              string
		want              int
	}{
		{2, 1, "", 1}, {31, 1, "", 1}, {32, 1, "", 2}, {64, 1, "", 4}, {256, 1, "", 4}, {64, 2, "", 2}, {64, 5, "", 1},
		{64, 1, "--memory=8MiB", 2}, {64, 1, "--memory=4MiB", 1}, {64, 1, "--memory=unlimited", 4},
		{64, 1, "--trap=sigsegv", 1}, {64, 1, "--stages=10", 1}, {64, 1, "--emulate-latency=1ms", 1},
		{2, 1, "--reactors=7", 7}, {64, 1, "--reactors=1", 1},
	} {
		v, err := load(t, strings.Fields(test.args), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if trap != pagetable.TrapUffd && v.Reactors == AutoReactors {
			test.want = 1
		}
		before := runtime.GOMAXPROCS(test.processors)
		got := v.MostReactors(test.nodes)
		runtime.GOMAXPROCS(before)
		if got != test.want {
			t.Errorf("%d processors, %d nodes, %s: %d reactors, want %d", test.processors, test.nodes, test.args, got, test.want)
		}
	}
}

// TestCheck: values that are right one by one, and together are or are not.
func TestCheck(t *testing.T) {
	for _, test := range []struct {
		args, want string
		look       func(*Values) bool
	}{
		{"", "", func(v *Values) bool {
			return v.Nodes == 1 && v.ID == 0 && v.Ranks == 1 && v.Static() && v.Listen == "127.0.0.1:0"
		}},
		{"--peers=a:1,b:2 --id=1", "", func(v *Values) bool { return v.Nodes == 2 && v.Listen == "b:2" && v.Ranks == 2 }},
		{"--peers=a:1,b:2 --id=2", "has places 0 to 1", nil},
		{"--peers=a:1,b --id=0", `address 1, "b"`, nil},
		{"--join=a,b:9,[fd00::1] --nodes=3", "", func(v *Values) bool {
			return v.ID == AutoID && v.Listen == ":7400" && v.Gossip == ":7401" && slices.Equal(v.Join, []string{"a:7401", "b:9", "[fd00::1]:7401"})
		}},
		{"--join=a --nodes=3 --listen=10.0.0.1:1 --ranks=7", "", func(v *Values) bool { return v.Gossip == "10.0.0.1:7401" && v.Ranks == 7 }},
		{"--join=a", "--join without --nodes", nil},
		{"--join=a --nodes=2 --id=2", "ids of 2 nodes are 0 to 1", nil},
		{"--join=a --nodes=2 --survive --rejoin --return", "", func(v *Values) bool { return v.Rejoin && v.Return }},
		{"--peers=a:1,b:2 --id=1 --rejoin", "--rejoin without --survive", nil},
		{"--peers=a:1,b:2 --id=1 --return", "--return without --survive", nil},
		{"--survive --rejoin", "one among several nodes", nil},
		{"--survive --return", "has no others", nil},
		{"--reactors=2 --trap=sigsegv", "--reactors 2: a daemon that traps by sigsegv (--trap) has one reactor; leave out one of them", nil},
		{"--reactors=2 --emulate-latency=1ms", "--reactors 2: a daemon that emulates a network (--emulate-latency, ", nil},
		{"--reactors=2 --emulate-bandwidth=1Gbit", "--reactors 2: a daemon that emulates a network ", nil},
		{"--reactors=2 --stages=10", "--reactors 2: a daemon that records the stages of faults (--stages) has one", nil},
		{"--reactors=3 --memory=8MiB", "needs 4MiB; give --memory 12MiB at least", nil},
		{"--reactors=3 --memory=12MiB", "", func(v *Values) bool { return v.Reactors == 3 }},
		{"--memory=unlimited --spill=/scratch", "--spill /scratch with --memory unlimited: no page would ever go there; give a bound (--memory), or leave out --spill", nil},
		{"--memory=4MiB --spill=/scratch", "", func(v *Values) bool { return v.Spill == "/scratch" }},
		{"--reactors=1 --survive --stages=10", "", func(v *Values) bool { return v.Survive }},
		{"--tls-ca=x --tls-key=y", "belong together", nil},
		{"--tls-ca=x --tls-key=y --tls-cert=z", "", (*Values).TLS},
	} {
		v, err := load(t, strings.Fields(test.args), "", nil)
		if err == nil {
			err = v.Check()
		}
		if test.want == "" && (err != nil || !test.look(v)) || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, %+v", test.args, err, v)
		}
	}
}

func TestBytes(t *testing.T) {
	for _, test := range []struct {
		in   string
		want uint64
		out  string
	}{
		{"0", 0, "0"}, {"4096", 4096, "4KiB"}, {"1000", 1000, "1000"}, {"64GiB", 64 << 30, "64GiB"}, {"64g", 64 << 30, "64GiB"},
		{"512 MB", 512 << 20, "512MiB"}, {"16TiB", 16 << 40, "16TiB"}, {"3B", 3, "3"}, {"1536M", 1536 << 20, "1536MiB"},
	} {
		var s, again Bytes
		if err := s.Set(test.in); err != nil || uint64(s) != test.want || s.String() != test.out {
			t.Errorf("%q: %d, %s, %v; want %d, %s", test.in, uint64(s), s.String(), err, test.want, test.out)
		}
		if err := again.Set(s.String()); err != nil || again != s {
			t.Errorf("%s: %d, %v", s.String(), again, err)
		}
	}
	for _, in := range []string{"", "G", "-1", "1.5G", "1X", "1GG", "1I", "1IB", "99999999999P", "64GiBs", "0x10"} {
		var s Bytes
		if err := s.Set(in); err == nil {
			t.Errorf("%q was taken for %d", in, uint64(s))
		}
	}
}

func TestRate(t *testing.T) {
	for _, test := range []struct {
		in   string
		want uint64
		out  string
	}{
		{"10Gbit", 10e9, "10Gbit"}, {"2.5gbit/s", 2.5e9, "2500Mbit"}, {"1 Mbit", 1e6, "1Mbit"}, {"100MB/s", 800e6, "800Mbit"},
		{"100MiB/s", 838860800, "838860800bit"}, {"9600bit", 9600, "9600bit"}, {"64000bit", 64000, "64kbit"}, {"1Tbit", 1e12, "1Tbit"},
	} {
		var r, again Rate
		if err := r.Set(test.in); err != nil || uint64(r) != test.want || r.String() != test.out {
			t.Errorf("%q: %d, %s, %v; want %d, %s", test.in, uint64(r), r.String(), err, test.want, test.out)
		}
		if err := again.Set(r.String()); err != nil || again != r {
			t.Errorf("%s: %d, %v", r.String(), again, err)
		}
	}
	for _, in := range []string{"", "10", "10G", "Gbit", "-1Gbit", "1.Gbit", "10Gbits", "1iB/s", "1MB", "10MiB", "1e9bit", "99999999999Tbit"} {
		var r Rate
		if err := r.Set(in); err == nil {
			t.Errorf("%q was taken for %d", in, uint64(r))
		}
	}
}

func TestDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"trap", "trap", 0}, {"tarp", "trap", 2}, {"metrisc", "metrics", 2}, {"spin", "span", 1}} {
		if got := Distance(test.a, test.b); got != test.want {
			t.Errorf("Distance(%q, %q) = %d, want %d", test.a, test.b, got, test.want)
		}
	}
}

// FuzzFile lets a file say anything: it is understood or refused, in order.
func FuzzFile(f *testing.F) {
	f.Add("nodes: 3\njoin: [a, b]\n")
	f.Add("a: &x [*x]\n")
	f.Fuzz(func(t *testing.T, text string) {
		entries, err := parse("f", strings.NewReader(text))
		if err != nil && !errors.Is(err, ErrConfig) {
			t.Error(err)
		}
		for name := range entries {
			find(name)
		}
	})
}
