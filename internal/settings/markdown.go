package settings

import (
	"fmt"
	"strings"
)

// Markdown is the table of all settings, for docs/configuration.md. What depends on the user or the
// machine is described instead.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| setting | unit | default | range | meaning |\n|---|---|---|---|---|\n")
	for i := range All {
		s := &All[i]
		shown := s.Derived
		switch {
		case s.Name == "socket":
			shown = "`$XDG_RUNTIME_DIR/dsmd.sock`, or `dsmd-UID.sock` in the directory for temporary files"
		case s.Default != "":
			shown = "`" + s.Default + "`"
		case shown == "":
			shown = "none"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", s.Name, s.Unit(), shown, s.Range, s.Meaning)
	}
	return b.String()
}
