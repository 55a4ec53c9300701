package loopback

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestNetworksAreApart: no two calls get the same network, and neither does another process that
// begins its search at the same place.
func TestNetworksAreApart(t *testing.T) {
	const env = "LOOPBACK_TEST_START"
	if start := os.Getenv(env); start != "" {
		taken.last = len(start)
		os.Stdout.WriteString(Network())
		os.Exit(0)
	}
	taken.last = 7
	first, second := Network(), Network()
	cmd := exec.Command(os.Args[0], "-test.run=^TestNetworksAreApart$")
	cmd.Env = append(os.Environ(), env+"="+strings.Repeat("x", 7))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if third := string(out); first == second || third == first || third == second || !strings.HasPrefix(third, "127.") {
		t.Errorf("the networks are %s, %s and, of another process, %s", first, second, third)
	}
}
