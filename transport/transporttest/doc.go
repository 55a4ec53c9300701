// Package transporttest says, as tests, what every transport.Transport must do.
//
// Run is the suite for all of them, RunCuts the one for those with connections, which are cut while
// the suite runs.
//
// An implementation calls Run from its own tests with a function that makes a connected
// cluster. Everything random in the suite comes from fixed seeds. A reactor that waits does so as
// the daemon does, in poll(2) on WaitFD and with a deadline, so that a lost wake-up is a
// failure and not a delay: nothing sleeps to let something else happen.
package transporttest
