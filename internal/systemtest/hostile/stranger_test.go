package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
)

// spy is a program of a stranger who has got in: it looks at the words of honest, and overwrites
// them.
var spy = testcluster.Define("spy", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	words, err := dsm.Alloc[uint64](s.Ctx, c, "words", 1024)
	if err != nil {
		return err
	}
	seen := words[0]
	words[0] = 666
	s.Say("%d, and now %d", seen, words[0])
	return c.Close()
})

// guises are how another user may start a daemon that is to pass for one of the victim's.
var guises = map[string]func(home string) (env, flags []string){
	"with a secret of his own": func(home string) ([]string, []string) {
		return []string{"HOME=" + home, testcluster.SecretEnv + "="}, nil
	},
	"with none": func(home string) ([]string, []string) {
		return []string{"HOME=" + home, testcluster.SecretEnv + "="}, []string{"--insecure"}
	},
}

// stranger is a daemon of another user that takes part in a cluster of this one, if it can.
type stranger struct {
	*testcluster.Process
	socket string
	ranks  int
}

// intrude starts dsmd serve as another user, in a guise, with the flags that he has seen.
func intrude(t *testing.T, guise string, ranks int, flags ...string) *stranger {
	t.Helper()
	user := testcluster.Ordinary(t)
	home, err := os.MkdirTemp("", "stranger") // t.TempDir's parent nobody else may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	if err := os.Chown(home, int(user.Uid), int(user.Gid)); err != nil {
		t.Fatal(err)
	}
	env, more := guises[guise](home)
	socket := fmt.Sprintf("@dsmd-stranger-%d-%s", os.Getpid(), t.Name()) // one for each test
	args := append(append([]string{"serve", "--socket", socket, "--ranks", fmt.Sprint(ranks), "--log-level", "debug"}, more...), flags...)
	return &stranger{socket: socket, ranks: ranks, Process: testcluster.Start(t, testcluster.Command{
		Name: "the stranger", Path: testcluster.Dsmd(t), Args: args, Env: env, User: user})}
}

// isNotIn fails if the stranger has got in, and has him show what he can do.
func (s *stranger) isNotIn(t *testing.T) {
	t.Helper()
	if s.isIn() {
		path, env := spy.Elsewhere(t)
		p := testcluster.Start(t, testcluster.Command{Name: "the stranger's program", Path: path,
			Env: append(env, "DSM_SOCKET="+s.socket, "DSM_RANK=1", fmt.Sprint("DSM_SIZE=", s.ranks)), User: testcluster.Ordinary(t)})
		t.Fatalf("another user has become a node, and its program reads %s", p.Hear(t))
	}
}

// isKeptOut waits until the stranger has given up.
func (s *stranger) isKeptOut(t *testing.T) {
	t.Helper()
	testcluster.Eventually(t, "the stranger is turned away", func() bool { return !s.Running() || s.isIn() })
	s.isNotIn(t)
	if status := s.Wait(t); status == 0 {
		t.Error("the stranger has ended as if all were well")
	}
	if says := s.Errors(); !strings.Contains(says, "secret") || !strings.Contains(says, "--secret-file") {
		t.Errorf("the stranger is not told what is missing:\n%s", says)
	}
}

// isIn reports whether the stranger's daemon is part of the cluster.
func (s *stranger) isIn() bool { return strings.Contains(s.Errors(), " serving ") }

// daemonOf finds the daemon of a node among what this test has started, as anybody can with ps.
func daemonOf(t *testing.T, node int) (pid int, line string) {
	t.Helper()
	for _, line := range testcluster.Having("DSMD_TEST_JOB=" + t.Name()) {
		if strings.Contains(line, " serve ") && strings.Contains(line, fmt.Sprintf(" --id %d ", node)) {
			if _, err := fmt.Sscan(line, &pid); err != nil {
				t.Fatal(err)
			}
			return pid, line
		}
	}
	t.Fatalf("node %d has no daemon", node)
	return 0, ""
}

// flagOf is the value of a flag on a command line.
func flagOf(t *testing.T, line, flag string) string {
	t.Helper()
	found := regexp.MustCompile(" --" + flag + "[ =]([^ ]+)").FindStringSubmatch(line)
	if found == nil {
		t.Fatalf("no --%s in %s", flag, line)
	}
	return found[1]
}

// isClosed checks that another user cannot read a file.
func isClosed(t *testing.T, path string) {
	t.Helper()
	cat := testcluster.Start(t, testcluster.Command{Name: "cat", Path: "/bin/cat", Args: []string{path}, User: testcluster.Ordinary(t)})
	if status := cat.Wait(t); status == 0 || cat.Output() != "" || !strings.Contains(cat.Errors(), "Permission denied") {
		t.Errorf("another user reads %d bytes of %s: %s", len(cat.Output()), path, cat.Errors())
	}
}

// TestStrangerTakesAPlace: a daemon of a job that survives losses is killed, and another user
// starts one of his own in its place, with all that /proc tells him. He is not let in, and the job
// comes to its end as if he were not there.
func TestStrangerTakesAPlace(t *testing.T) {
	for guise := range guises {
		t.Run(guise, func(t *testing.T) {
			testcluster.Ordinary(t)
			lock := lockAt(0, 3)
			job := testcluster.Job{Nodes: 3, Flags: []string{"--survive", "--log-level", "info"}, Program: honest,
				Args: []string{lock}, Env: []string{"DSMD_TEST_JOB=" + t.Name()}}.Run(t)
			for range 3 { // the ranks, in any order; those that have no input end
				if line := job.Hear(t); !strings.HasSuffix(line, "ready") {
					t.Fatalf("a rank says %q", line)
				}
			}
			job.Do(t, "[0] 10 20", "add 10")
			other, line := daemonOf(t, 2)
			secret := strings.Replace(flagOf(t, line, "secret-file"), "self", fmt.Sprint(other), 1)
			if text, err := os.ReadFile(secret); err != nil || len(text) == 0 {
				t.Fatalf("the secret is not at %s: %d bytes, %v", secret, len(text), err)
			}
			isClosed(t, secret)
			isClosed(t, fmt.Sprintf("/proc/%d/environ", other))
			victim, line := daemonOf(t, 1)
			if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			job.AwaitLog(t, "the daemon of node 1")
			s := intrude(t, guise, 3, "--survive", "--rejoin", "--id", "1", "--peers", flagOf(t, line, "peers"), "--cluster", flagOf(t, line, "cluster"))
			if says := s.AwaitLog(t, "is called until it is connected"); !strings.Contains(says, "secret") || !strings.Contains(says, "--secret-file") {
				t.Errorf("the stranger is not told what is missing: %s", says)
			}
			job.AwaitLog(t, "secret") // it says, too, that somebody was turned away
			job.Do(t, "[0] 20 40", "add 10")
			s.isNotIn(t) // he goes on, because node 2 may call him
			job.Succeed(t)
		})
	}
}

// TestStrangerIsFirst: another user starts a daemon as node 1 before the true one is there. The
// others wait for that one.
func TestStrangerIsFirst(t *testing.T) {
	for guise := range guises {
		t.Run(guise, func(t *testing.T) {
			testcluster.Ordinary(t)
			c, others := testcluster.ServeFirst(t, 1, 2, 2)
			others[0].Close()
			intrude(t, guise, 2, "--id", "1", "--peers", strings.Join(c.Addresses(), ",")).isKeptOut(t)
			c.Again(t, 1)
			lock := lockAt(0, 2)
			a, b := c.Program(t, honest, 0, 0, lock), c.Program(t, honest, 1, 1, lock)
			a.Expect(t, "ready")
			b.Expect(t, "ready")
			a.Do(t, "10 20", "add 10")
			b.Do(t, "15 30", "add 5")
			for _, p := range []*testcluster.Process{a, b} {
				p.End()
				p.Succeed(t)
			}
			if !strings.Contains(c.Daemons[0].Errors(), "secret") {
				t.Errorf("the daemon does not say that somebody was turned away:\n%s", c.Daemons[0].Errors())
			}
		})
	}
}

// TestStrangerGossips: another user comes to a cluster of this machine whose nodes find each other.
// He is none of them, and they do.
func TestStrangerGossips(t *testing.T) {
	for guise := range guises {
		t.Run(guise, func(t *testing.T) {
			testcluster.Ordinary(t)
			lan := testcluster.NewLAN(2)
			first := lan.Daemon(t, 0)
			first.AwaitLog(t, "gossiping")
			intrude(t, guise, 2, "--nodes", "2", "--cluster", "lan", "--listen", lan.IP(1)+":7400", "--join", lan.IP(0)).isKeptOut(t)
			second := lan.Daemon(t, 1)
			for _, d := range []*testcluster.Process{first, second} {
				d.AwaitLog(t, " serving ")
			}
		})
	}
}

// TestSecretOfOnesOwn: daemons that nobody has given a secret find that of their user, who has it
// made for him and alone can read it.
func TestSecretOfOnesOwn(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv(testcluster.SecretEnv, "")
	c := testcluster.Serve(t, 4, 4)
	for i := range 4 {
		c.Program(t, honest, i, i, lockAt(0, 4)).Expect(t, "ready")
	}
	for path, want := range map[string]os.FileMode{filepath.Join(home, ".dsmd"): 0o700 | os.ModeDir, filepath.Join(home, ".dsmd", "secret"): 0o600} {
		info, err := os.Stat(path)
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want mode %v", path, info, err, want)
		}
	}
	left, err := os.ReadDir(filepath.Join(home, ".dsmd"))
	if err != nil || len(left) != 1 {
		t.Errorf("beside the secret lie %v, %v", left, err)
	}
}
