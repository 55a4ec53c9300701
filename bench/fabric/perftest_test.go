package fabric

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// latTable is what ib_write_lat of perftest 24.01 writes last.
const latTable = ` #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 4096    1000          56.13          21343.67      58.68    	       442.80      	1618.98		10115.96 		21343.67
---------------------------------------------------------------------------------------
`

func TestReadPerftest(t *testing.T) {
	p, err := readPerftest("Max inline data : 0[B]\n"+latTable, 4096)
	if err != nil || p.P50 != 58.68 || p.P99 != 10115.96 || p.Samples != 1000 || p.Bytes != 4096 {
		t.Errorf("%+v, %v", p, err)
	}
	for name, said := range map[string]string{
		"nothing":      "",
		"another size": strings.Replace(latTable, " 4096 ", " 64 ", 1),
		"no number":    strings.Replace(latTable, "58.68", "fast", 1),
		"no time":      strings.Replace(latTable, "58.68", "0.00", 1),
		"fewer":        " 4096    1000          2.10\n",
	} {
		if p, err := readPerftest(said, 4096); !errors.Is(err, ErrPerftest) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
}

// putProgram puts a shell script where programs are looked for first.
func putProgram(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

var twoEnds = [2]perftestEnd{{"rxe0", 1}, {"rxe1", 3}}

// TestRunPerftest: both ends get their arguments, and the driving one is started again until the
// other is ready.
func TestRunPerftest(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("RENDEZVOUS", dir)
	t.Setenv("TABLE", latTable)
	putProgram(t, "ib_fake_lat", `
for last; do :; done
if [ "$last" != 127.0.0.1 ]; then
	echo "$@" >"$RENDEZVOUS/server"
	sleep 0.1
	touch "$RENDEZVOUS/ready"
	while [ ! -e "$RENDEZVOUS/client" ]; do sleep 0.01; done
	exit 0
fi
[ -e "$RENDEZVOUS/ready" ] || { echo "Couldn't connect to 127.0.0.1"; exit 1; }
echo "$@" >"$RENDEZVOUS/client"
echo "$TABLE"
`)
	p, err := runPerftest(t.Context(), "ib_fake_lat", 4096, twoEnds, true)
	if err != nil || p.P50 != 58.68 {
		t.Fatalf("%+v, %v", p, err)
	}
	for file, want := range map[string]string{"client": "-d rxe0 -x 1 -s 4096 -p ", "server": "-d rxe1 -x 3 -s 4096 -p "} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || !strings.HasPrefix(string(text), want) {
			t.Errorf("the %s's arguments are %q, %v", file, text, err)
		}
	}
}

// TestPerftestFails: whatever is wrong is said, and nothing is waited for that cannot come.
func TestPerftestFails(t *testing.T) {
	if _, err := runPerftest(t.Context(), "ib_missing_lat", 64, twoEnds, false); !errors.Is(err, ErrPerftest) || !strings.Contains(err.Error(), "apt-get install perftest") {
		t.Errorf("a program that is not there: %v", err)
	}
	putProgram(t, "ib_broken_lat", "echo no such device; exit 2\n")
	if _, err := runPerftest(t.Context(), "ib_broken_lat", 64, twoEnds, false); !errors.Is(err, ErrPerftest) || !strings.Contains(err.Error(), "no such device") {
		t.Errorf("a program that fails: %v", err)
	}
	// A server that does not know its client waits for ever. It ends with the context, at the
	// latest.
	putProgram(t, "ib_deaf_lat", "for last; do :; done\n[ \"$last\" != 127.0.0.1 ] || exit 1\nexec sleep 600\n")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second/4)
	defer cancel()
	if _, err := runPerftest(ctx, "ib_deaf_lat", 64, twoEnds, false); !errors.Is(err, ErrPerftest) {
		t.Errorf("a server that never answers: %v", err)
	}
	o := brief(Fetches)
	o.Perftest = true
	if err := o.check(); err == nil {
		t.Error("perftest is wanted without RDMA, and that is not refused")
	}
}
