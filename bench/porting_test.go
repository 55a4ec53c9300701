package main

import (
	"os"
	"strings"
	"testing"
)

// TestPortingQuotesTheCode: what docs/porting.md shows as the code of a file of this repository is
// in that file, line by line. A block of code is a quotation if the line before it is a file's name
// in backquotes and a colon.
func TestPortingQuotesTheCode(t *testing.T) {
	text, err := os.ReadFile("../docs/porting.md")
	if err != nil {
		t.Fatal(err)
	}
	quotations := 0
	for _, part := range strings.Split(string(text), ":\n```go\n")[1:] {
		quotations++
		code, _, closed := strings.Cut(part, "```\n")
		before, _, _ := strings.Cut(string(text), ":\n```go\n"+part)
		name := strings.Trim(before[strings.LastIndex(before, "\n")+1:], "`")
		source, err := os.ReadFile("../" + name)
		if err != nil {
			t.Errorf("quotation %d: %v", quotations, err)
			continue
		}
		if !closed || !strings.Contains(string(source), code) {
			t.Errorf("%s does not contain\n%s", name, code)
		}
	}
	if quotations < 8 {
		t.Errorf("%d quotations; the worked example has more", quotations)
	}
}
