package testcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"

	"dsmd/internal/built"
	"dsmd/internal/certs"
	"dsmd/internal/patience"
	"dsmd/internal/require"
)

const (
	envProgram = "DSMD_TEST_PROGRAM" // in a program: its name in programs
	envLimit   = "DSMD_TEST_LIMIT"   // in a program: when Self.Ctx ends
	envMark    = "DSMD_TEST_MARK"    // in everything that a test binary starts: who started it
	// in a test binary that another has started: where the binaries lie
	envDir = "DSMD_TEST_DIR"
)

// place is where the binaries of this test binary lie.
var place struct {
	once sync.Once
	dir  string
	own  bool // made by this process
	err  error
}

// Main is the body of TestMain. In a copy of the test binary that was started as a program it runs
// that program instead of the tests.
func Main(m *testing.M) {
	if name := os.Getenv(envProgram); name != "" {
		os.Exit(runProgram(name))
	}
	mark := strconv.Itoa(os.Getpid())
	if err := os.Setenv(envMark, mark); err != nil {
		panic(err)
	}
	secret, err := giveSecret()
	if err != nil {
		panic(err)
	}
	patience.Beside(5)
	status := m.Run()
	if err := os.RemoveAll(secret); err != nil {
		fmt.Fprintf(os.Stderr, "testcluster: %v\n", err)
		status = 1
	}
	if left := marked(mark); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "testcluster: left behind: %q\n", left)
		status = 1
	}
	if place.own {
		if err := os.RemoveAll(place.dir); err != nil {
			fmt.Fprintf(os.Stderr, "testcluster: %v\n", err)
			status = 1
		}
	}
	os.Exit(status)
}

// giveSecret has all daemons of this test binary share a secret, instead of that in the user's home
// directory. It returns the directory where it lies.
func giveSecret() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "dsmd-test-secret-"); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "secret")
	return dir, errors.Join(certs.WriteSecret(path, false), os.Setenv(SecretEnv, path))
}

// SecretEnv is the environment variable that says where the secret of daemons lies.
const SecretEnv = "DSMD_SECRET_FILE"

// Dir is the directory with the binaries, readable for everybody.
func Dir(t testing.TB) string {
	t.Helper()
	place.once.Do(func() { place.dir, place.own, place.err = prepare() })
	if place.err != nil {
		t.Fatal(place.err)
	}
	return place.dir
}

// Dsmd is the path of the daemon's binary, built from this tree.
func Dsmd(t testing.TB) string { return filepath.Join(Dir(t), "dsmd") }

// program is the path of a copy of the test binary.
func program(t testing.TB) string { return filepath.Join(Dir(t), "program") }

// prepare builds dsmd and copies the test binary to where any user can run it.
func prepare() (dir string, own bool, err error) {
	if dir = os.Getenv(envDir); dir != "" {
		return dir, false, nil
	}
	if dir, err = os.MkdirTemp("", "dsmd-test-"); err != nil {
		return "", false, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return dir, true, err
	}
	ctx := context.Background()
	module, err := built.Module(ctx, "")
	if err == nil {
		err = built.DsmdAt(ctx, filepath.Join(dir, "dsmd"), module, buildFlags...)
	}
	if err != nil {
		return dir, true, fmt.Errorf("testcluster: building dsmd: %w", err)
	}
	return dir, true, built.Copy("/proc/self/exe", filepath.Join(dir, "program"))
}

// marked lists what this test binary has started, directly or not, and still runs.
func marked(mark string) []string { return Having(envMark + "=" + mark) }

// Having lists the command lines of the processes, other than this one, that were started with the
// given variable (NAME=VALUE) in their environment. A zombie has no environment and is not among
// them.
func Having(variable string) (list []string) {
	all, err := procfs.AllProcs()
	if err != nil {
		return []string{err.Error()}
	}
	for _, p := range all {
		// That of a process that has ended meanwhile, or is another user's, cannot be read.
		if env, _ := p.Environ(); p.PID != os.Getpid() && slices.Contains(env, variable) {
			line, _ := p.CmdLine()
			list = append(list, fmt.Sprint(p.PID, " ", strings.Join(line, " "), " "))
		}
	}
	return list
}

// ordinary is the user and the group "nobody".
const ordinary = 65534

// Ordinary is an ordinary user, as whom a test starts processes. Only root can do that; for anybody
// else the test is skipped.
func Ordinary(t testing.TB) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		require.Missing(t, "root", "needs root to become an ordinary user; user %d is one", os.Geteuid())
	}
	return &syscall.Credential{Uid: ordinary, Gid: ordinary}
}

// AsUser runs the tests of this binary whose names match a pattern once more, as an ordinary user,
// and returns their exit status and output. Being skipped for others does no harm: they run them as
// ordinary users anyway.
func AsUser(t testing.TB, pattern string) (status int, output string) {
	t.Helper()
	p := Start(t, Command{
		Name: "the tests as an ordinary user", Path: program(t),
		// with a limit, by which each of them is watched
		Args: []string{"-test.v", "-test.count=1", "-test.timeout=20m", "-test.run=" + pattern},
		Env:  []string{envDir + "=" + Dir(t)}, User: Ordinary(t),
	})
	return p.waitWithin(t, 4*Patience), p.Output() // less than patience.Still
}
