package settings

import (
	"fmt"
	"strings"
)

// markdown is the table of all settings, for docs/configuration.md. What depends on the user or the
// machine is described instead.
func markdown() string {
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
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", s.Name, unit(s), shown, s.Range, s.Meaning)
	}
	return b.String()
}

// unit is the unit of a setting's value, for people.
func unit(s *Setting) string {
	switch s.value(blank()).Type() {
	case "SIZE":
		return "bytes, with K, M, G or T"
	case "RATE":
		return "bits per second, with kbit, Mbit or Gbit; or bytes, with MB/s or MiB/s"
	case "DURATION":
		return "time, with µs, ms, s, m or h"
	case "N":
		return "number"
	case "bool":
		return "truth"
	case "HOSTS", "ADDRS":
		return "list"
	}
	return "text"
}
