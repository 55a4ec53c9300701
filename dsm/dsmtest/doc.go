// Package dsmtest runs a test on a cluster: `go test` starts daemons, and a copy of the test on
// each.
//
//	func TestSquares(t *testing.T) {
//		dsmtest.Run(t, 4, func(ctx context.Context, c *dsm.Cluster) {
//			squares, err := dsm.Alloc[int](ctx, c, "squares", 1000)
//			if err != nil {
//				t.Fatal(err)
//			}
//			for i := c.Rank(); i < len(squares); i += c.Size() {
//				squares[i] = i * i
//			}
//			if err := c.Barrier(ctx); err != nil {
//				t.Fatal(err)
//			}
//			if squares[999] != 998001 {
//				t.Errorf("rank %d sees %d", c.Rank(), squares[999])
//			}
//		})
//	}
//
// # Where what runs
//
// Each rank is the test binary once more, told to run this test only. So in a rank the test begins
// as it does in `go test`, and what it does before Run is done there, too. Then Run calls body,
// with the t of the rank: t.Fatal, t.Log, t.Skip and t.Cleanup are the rank's own. The test ends
// there when body does (a subtest, if Run is called there: what comes after t.Run is done in ranks,
// too). In `go test`, Run waits for all ranks and goes on after them. What body stores in variables
// of the test is not seen there, as it was stored in other processes. TestMain runs in the ranks,
// too; IsRank tells it so.
//
// # Failures
//
// When a rank fails, panics or ends otherwise, the others are ended, and the test fails with what
// the rank has said, first, and what the others have. It fails as well if a rank has ended before
// body was over, or waits at a barrier for one whose body is. If all ranks skip the test it is
// skipped; if only some do, it fails. With -v everything that the ranks print is shown.
//
// The context ends some time before the limit that -timeout sets. So calls that wait for ever
// return, and say for whom. A rank that does not end even then says what its goroutines do, and the
// test fails.
//
// Loss can be tested, too: with the flag --survive a rank may be killed, or lose its node by
// LoseNode, and the test passes if the others' bodies end.
//
// # The rest of go test
//
// Ranks are built as the test is: with -race every rank looks for races. They get -short, the
// test's own flags and its arguments. What they cover counts for -cover. Profiles and traces are of
// `go test`'s own process only.
//
// To see a rank in a debugger, run `DSMTEST_DEBUG=2 go test -timeout 0 -run TestSquares`. Rank 2
// then says its process number, and waits for `dlv attach` before it calls body.
//
// # Daemons
//
// `dsmd run` starts them, on free ports of the loopback network. dsmd is built from the version of
// module dsmd that the test uses, once: it lies in the user's cache directory (os.UserCacheDir).
// Where there is no go command, or modules are vendored, DSMTEST_DSMD names a dsmd of that version.
// DSMTEST_FLAGS has flags, separated by spaces, that all runs of it get. With DSMTEST_TRAP=auto or
// sigsegv RunEach runs body with that way to trap accesses alone.
//
// Nothing stays behind, also if the test is killed: the kernel tells `dsmd run`, and that ends all.
package dsmtest
