package main

import (
	"os"
	"strings"
	"testing"
)

// TestDocumentsQuoteTheCode: what docs/porting.md and docs/guide.md show as the code of a file of
// this repository is in that file, line by line. A block of code is a quotation if the line before
// it is a file's name in backquotes and a colon.
func TestDocumentsQuoteTheCode(t *testing.T) {
	for name, least := range map[string]int{"porting.md": 8, "guide.md": 8} {
		text, err := os.ReadFile("../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		quotations := 0
		for _, part := range strings.Split(string(text), ":\n```go\n")[1:] {
			quotations++
			code, _, closed := strings.Cut(part, "```\n")
			before, _, _ := strings.Cut(string(text), ":\n```go\n"+part)
			file := strings.Trim(before[strings.LastIndex(before, "\n")+1:], "`")
			source, err := os.ReadFile("../" + file)
			if err != nil {
				t.Errorf("%s, quotation %d: %v", name, quotations, err)
				continue
			}
			if !closed || !strings.Contains(string(source), code) {
				t.Errorf("%s: %s does not contain\n%s", name, file, code)
			}
		}
		if quotations < least {
			t.Errorf("%s has %d quotations; the worked examples have more", name, quotations)
		}
	}
}
