package membership

import (
	"regexp"
	"strings"

	"go.uber.org/zap"
)

// translator takes memberlist's log. It says what an operator must know in this project's words;
// the rest is for those who debug.
type translator struct{ *Group }

var (
	suspicion  = regexp.MustCompile(`Suspect (\S+) has failed`)
	unreadable = regexp.MustCompile(`(?i)(?:encrypt|decrypt).* (?:from=)(\S+)`)
)

// keyDiffers says what errors of memberlist about encryption mean.
const keyDiffers = "the gossip key differs or is missing: give all nodes the same (--gossip-key-file), or the same secret (--secret-file), of which it is made"

// Write takes a line, such as "[WARN] memberlist: …".
func (t *translator) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if !strings.HasPrefix(text, "[DEBUG]") {
		t.signal() // a node is suspected, say, or objects
	}
	if m := suspicion.FindStringSubmatch(text); m != nil {
		t.count.suspicions.Inc()
		t.log.Warn("node suspected: it does not answer", zap.String("node", m[1]), zap.Duration("dead_after", t.cfg.DeadAfter))
		return len(line), nil
	}
	if m := unreadable.FindStringSubmatch(text); m != nil {
		t.count.refusals.Inc()
		t.log.Warn("refused", zap.String("reason", keyDiffers), zap.String("from", m[1]))
		return len(line), nil
	}
	t.log.Debug(text)
	return len(line), nil
}

// aboutKeys reports whether an error of memberlist's means that the two sides have different keys.
func aboutKeys(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, "encrypt") || strings.Contains(text, "decrypt")
}
