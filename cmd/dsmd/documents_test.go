package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestDocumentsKnowTheCommands: commands and their flags are called in the documents as they are
// called here, and those that list all commands have all.
func TestDocumentsKnowTheCommands(t *testing.T) {
	root := newRoot()
	root.InitDefaultCompletionCmd()
	documents, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(documents) < 10 {
		t.Fatalf("%d documents, %v", len(documents), err)
	}
	commands := 0
	for _, path := range append(documents, "../../README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, words := range calls(string(text)) {
			cmd, rest, err := root.Find(words)
			if err != nil || cmd == root {
				continue // a sentence
			}
			commands++
			cmd.InitDefaultHelpFlag()
			for _, flag := range flagsOf(rest) {
				if cmd.Flag(flag) == nil {
					t.Errorf("%s: %s has no flag --%s: %q", filepath.Base(path), cmd.CommandPath(), flag, strings.Join(words, " "))
				}
			}
		}
	}
	if commands < 50 {
		t.Errorf("only %d commands were found in the documents", commands)
	}
	for path, line := range map[string]string{"../../docs/architecture.md": "(?m)^\\| `cmd/dsmd` .*$", "main.go": `(?s)^// Command dsmd.*\npackage main`} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		list := regexp.MustCompile(line).FindString(string(text))
		for _, cmd := range root.Commands() {
			if shown(cmd) && !regexp.MustCompile(`\b`+cmd.Name()+`\b`).MatchString(list) {
				t.Errorf("%s does not have dsmd %s in its list of commands", path, cmd.Name())
			}
		}
	}
}

// shown is whether a command is one that a list has: cobra's own are everywhere the same.
func shown(cmd *cobra.Command) bool {
	return !cmd.Hidden && cmd.Name() != "completion" && cmd.Name() != "help"
}

// calls are the command lines of dsmd in a text: the words behind "dsmd", up to the end of the
// line, of the code, or of the command.
func calls(text string) (lines [][]string) {
	for _, m := range regexp.MustCompile("(?m)\\bdsmd ([a-z][^`\n|;&#]*)").FindAllStringSubmatch(text, -1) {
		line, _, _ := strings.Cut(m[1], " -- ")
		lines = append(lines, strings.Fields(line))
	}
	return lines
}

// flagsOf are the names of the flags among words.
func flagsOf(words []string) (names []string) {
	for _, word := range words {
		if m := regexp.MustCompile(`^--([a-z][a-z-]*)`).FindStringSubmatch(word); m != nil {
			names = append(names, m[1])
		}
	}
	return names
}
