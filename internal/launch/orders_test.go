package launch

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// every byte that an argument or a variable can have. A JSON text has no place for those from 0x80
// on, as they stand here.
func everyByte() (all []byte) {
	for b := 1; b < 256; b++ {
		all = append(all, byte(b))
	}
	return all
}

// TestBytesReachThePrograms: arguments and environment are bytes to the kernel, and to users who
// name files in Latin-1, whichever way the job goes.
func TestBytesReachThePrograms(t *testing.T) {
	all := everyByte()
	want := fmt.Sprintf("%x %x", all, all)
	for name, j := range map[string]job{
		"here":    {Nodes: 2},
		"ssh":     {Hosts: []string{"host-a", "host-b"}},
		"meeting": {Meet: filepath.Join(t.TempDir(), "shared"), Tasks: 2},
	} {
		t.Run(name, func(t *testing.T) {
			j.Program, j.RawArgs, j.RawEnv = play("bytes"), [][]byte{all}, [][]byte{append([]byte("FAKE_BYTES="), all...)}
			s := supervise(t, j)
			if j.Meet != "" {
				attend(t, j.Meet, 2, 1)
			}
			s.wantStatus(0)
			slices.Sort(s.out)
			if want := []string{"[0] " + want, "[1] " + want}; !slices.Equal(s.out, want) {
				t.Errorf("output\n%q, want\n%q", s.out, want)
			}
		})
	}
}

// TestBytesOfNames: so are the names of the program and of its directory.
func TestBytesOfNames(t *testing.T) {
	p := plan{token: "x"}
	cfg := Config{Program: []string{"./\xff"}, Dir: "/\xfe"}
	o, err := decode[openOrder](mustEncode(p.openOrder(&cfg, place{name: "host"})))
	if err != nil || string(o.Program) != "./\xff" || string(o.Dir) != "/\xfe" {
		t.Errorf("%q in %q, %v", o.Program, o.Dir, err)
	}
}

// TestManySlotsWithLongArguments: the command line and the environment go to a host once, however
// many programs run there.
func TestManySlotsWithLongArguments(t *testing.T) {
	long := strings.Repeat("x", padBytes)
	cfg := Config{Program: []string{"true", long}, Env: []string{"LONG=" + long}}
	at := place{name: "host-a", nodes: []int{0}}
	for rank := range 60 {
		at.ranks, at.homes = append(at.ranks, rank), append(at.homes, 0)
	}
	p := plan{token: "x", ranks: 60, places: []place{at}}
	if n := len(mustEncode(p.startOrder(&cfg, at, nil, nil, nil))); n > 4*padBytes {
		t.Errorf("60 programs with %d bytes of arguments and as much of environment make an order of %d", padBytes, n)
	}
	s := supervise(t, job{Hosts: []string{"host-a:60"}, Program: []string{"true", strings.Repeat("x", padBytes)}})
	s.wantStatus(0)
}

// TestLongEnvironment: what the kernel would take, the connection does.
func TestLongEnvironment(t *testing.T) {
	arg := strings.Repeat("x", padBytes)
	s := supervise(t, job{Hosts: []string{"host-a:2"}, Program: []string{"true", arg}, PadEnv: 10})
	s.wantStatus(0)
}

// TestOrderThatIsTooLong: no machine could start a program with such an environment, and the user
// hears what is too long, and what to do.
func TestOrderThatIsTooLong(t *testing.T) {
	t.Parallel()
	s := supervise(t, job{Hosts: []string{"host-a", "host-b"}, Program: play("hello"), PadEnv: 160})
	s.wantStatus(StatusSystem)
	s.wantError("the command line and environment of the programs")
	s.wantError("in a file")
	if len(s.out) != 0 {
		t.Errorf("a job that was not started printed %.200q", s.out)
	}
}

// TestMoreThanTheKernelTakes: what the connection takes and the kernel does not, is said as well.
func TestMoreThanTheKernelTakes(t *testing.T) {
	s := supervise(t, job{Hosts: []string{"host-a"}, Program: play("hello"), PadEnv: 70})
	s.wantStatus(StatusSystem)
	s.wantError("argument list too long")
	s.wantError("in a file")
}

// TestAgentSaysWhyItEnds: an agent that cannot do what it is told says why, before it ends.
func TestAgentSaysWhyItEnds(t *testing.T) {
	s := supervise(t, job{Hosts: []string{"host-a", "host-garbles"}, Program: play("hello")})
	s.guarded = true
	s.wantStatus(StatusSystem)
	s.wantError("on host-garbles: its dsmd has ended: " + errFrame.Error())
	s.wantError("4294967295 bytes")
}
