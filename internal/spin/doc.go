// Package spin decides for how long it is worth it to look again and again for what a thread waits for, before it sleeps. Daemons look so for
// messages and calls, and programs for replies.
package spin
