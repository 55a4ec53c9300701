// Package testcluster lets tests run real daemons and real programs: the dsmd binary, and copies of
// the test binary that run as programs on it.
//
// A test package calls Main from its TestMain and defines its programs at package level:
//
//	func TestMain(m *testing.M) { testcluster.Main(m) }
//
//	var hello = testcluster.Define("hello", func(s *testcluster.Self) error {
//		c, err := dsm.Join(s.Ctx)
//		...
//		s.Say("joined as %d", c.Rank())
//		return s.Await("go on")
//	})
//
// A test starts them either one by one, on daemons that Serve has started, and leads them line by
// line through their standard input and output (Process), or as a job under `dsmd run` (Job).
//
// Every wait ends after Patience at the latest, with a failure that shows what every process has
// printed. No test sleeps to let something happen: it waits for a line, an exit or a counter.
//
// Nothing is left behind: a test's processes are killed at its end and die with the test binary,
// and Main fails when a process with its mark in the environment is still there at the end.
package testcluster
