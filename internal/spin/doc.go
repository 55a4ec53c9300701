// Package spin decides for how long a thread should poll before it sleeps. Daemons poll for
// messages and calls, programs for replies.
package spin
