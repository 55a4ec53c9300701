package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stranger is a user without rights.
const stranger = 65534

// invitation files as a stranger, or a careless owner, may have left them.
var untrusted = map[string]struct {
	says  string
	spoil func(t *testing.T, dir, file string)
}{
	"another user's file":     {"belongs to user 65534", func(t *testing.T, dir, file string) { give(t, file) }},
	"a file others may write": {"chmod 600", func(t *testing.T, dir, file string) { mode(t, file, 0o622) }},
	"a file others may read":  {"chmod 600", func(t *testing.T, dir, file string) { mode(t, file, 0o644) }},
	"a link to a file": {"no regular file", func(t *testing.T, dir, file string) {
		elsewhere := filepath.Join(t.TempDir(), "elsewhere")
		if err := os.Rename(file, elsewhere); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(elsewhere, file); err != nil {
			t.Fatal(err)
		}
	}},
	"another user's directory":         {"belongs to user 65534", func(t *testing.T, dir, file string) { give(t, dir) }},
	"a directory that others write to": {"chmod go-w", func(t *testing.T, dir, file string) { mode(t, dir, 0o777) }},
	"a directory of the group":         {"chmod go-w", func(t *testing.T, dir, file string) { mode(t, dir, 0o770) }},
	"another user's file in a sticky directory": {"belongs to user 65534", func(t *testing.T, dir, file string) {
		mode(t, dir, 0o777|os.ModeSticky)
		give(t, file)
	}},
	"a pipe": {"no regular file", func(t *testing.T, dir, file string) {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(file, 0o600); err != nil {
			t.Fatal(err)
		}
	}},
}

func give(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	if err := os.Chown(path, stranger, stranger); err != nil {
		t.Fatal(err)
	}
}

func mode(t *testing.T, path string, m os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, m); err != nil {
		t.Fatal(err)
	}
}

// TestForeignInvitation: whoever writes the invitation says which programs run, as the user who
// believes it. So nobody comes to one that somebody else may have written, and the error says what
// to do.
func TestForeignInvitation(t *testing.T) {
	for name, test := range untrusted {
		t.Run(name, func(t *testing.T) {
			m := Meeting{Dir: filepath.Join(t.TempDir(), "shared"), Name: "meeting", Tasks: 2, Timeout: patience}
			h, err := m.hold()
			if err != nil {
				t.Fatal(err)
			}
			defer h.close()
			test.spoil(t, m.Dir, m.File())
			came := make(chan struct{})
			attended := make(chan error, 1)
			go func() { attended <- m.Attend(1, "victim", AgentConfig{Version: "1"}) }()
			go func() {
				<-h.links[1].come
				close(came)
			}()
			select {
			case err := <-attended:
				for _, want := range []string{test.says, "--meet"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%v, want %q", err, want)
					}
				}
			case <-came:
				h.links[1].cut()
				<-attended
				t.Error("the victim has come, and does what it is told")
			case <-time.After(2 * patience):
				t.Fatal("the victim neither comes nor refuses to")
			}
		})
	}
}

// TestMeetingInAStickyDirectory: in one like /tmp nobody can replace the file, and so one may meet
// there.
func TestMeetingInAStickyDirectory(t *testing.T) {
	dir := t.TempDir()
	mode(t, dir, 0o777|os.ModeSticky)
	late := attend(t, dir, 2, 1)
	s := supervise(t, job{Meet: dir, Tasks: 2, Program: play("attach")})
	s.wantStatus(0)
	if err := late.Wait(); err != nil {
		t.Errorf("%v: %s", err, late.Stderr)
	}
}

// TestMeetingWhereOthersWrite: the launcher does not leave an invitation where somebody else could
// replace it.
func TestMeetingWhereOthersWrite(t *testing.T) {
	dir := t.TempDir()
	mode(t, dir, 0o777)
	s := supervise(t, job{Meet: dir, Tasks: 2, Program: play("hello")})
	s.wantStatus(StatusSystem)
	s.wantError("chmod go-w")
	s.wantError("--meet")
}
