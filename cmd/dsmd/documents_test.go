package main

import (
	"fmt"
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
		found, wrong := look(root, string(text))
		for _, line := range wrong {
			t.Errorf("%s: %s", filepath.Base(path), line)
		}
		commands += found
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

// TestStrangeCommands: a command, a command of a command and a flag that there is not are found in
// code, and what is a sentence is none.
func TestStrangeCommands(t *testing.T) {
	root := newRoot()
	root.InitDefaultCompletionCmd()
	for text, want := range map[string]string{
		"dsmd is for programs, and dsmd runs them.": "",
		"Look at `dsmd status`, or `dsmd statsu`":   "no command statsu",
		"Begin:\n\n    dsmd rnu -n 4 -- ./solve\n":  "no command rnu",
		"```sh\nsudo dsmd serv --id 1\n```":         "no command serv",
		"```\n```\ndsmd traps faults":               "",
		"`dsmd cert nod --ca x`":                    "dsmd cert has no command nod",
		"`dsmd run --nodez 4 -- true`":              "dsmd run has no flag --nodez",
		"dsmd run takes --nodez":                    "dsmd run has no flag --nodez",
	} {
		_, wrong := look(root, text)
		if want == "" && len(wrong) > 0 || want != "" && (len(wrong) != 1 || !strings.Contains(wrong[0], want)) {
			t.Errorf("%q: %q, want %q", text, wrong, want)
		}
	}
}

// look finds the commands of dsmd in a text, and says what is wrong with them. Where the text is no
// code, what is no command may be a sentence.
func look(root *cobra.Command, text string) (found int, wrong []string) {
	for _, c := range calls(text) {
		cmd, rest, err := root.Find(c.words)
		if err != nil || cmd == root {
			if c.code {
				wrong = append(wrong, fmt.Sprintf("there is no command %s: %q", c.words[0], strings.Join(c.words, " ")))
			}
			continue
		}
		found++
		cmd.InitDefaultHelpFlag()
		if c.code && cmd.HasSubCommands() && len(rest) > 0 && regexp.MustCompile(`^[a-z]+$`).MatchString(rest[0]) {
			wrong = append(wrong, fmt.Sprintf("%s has no command %s: %q", cmd.CommandPath(), rest[0], strings.Join(c.words, " ")))
			continue
		}
		for _, flag := range flagsOf(rest) {
			if cmd.Flag(flag) == nil {
				wrong = append(wrong, fmt.Sprintf("%s has no flag --%s: %q", cmd.CommandPath(), flag, strings.Join(c.words, " ")))
			}
		}
	}
	return found, wrong
}

// calling is a command line of dsmd in a text: the words behind "dsmd", up to the end of the line,
// of the code, or of the command.
type calling struct {
	words []string
	code  bool // between backticks, or in a block of code
}

func calls(text string) (list []calling) {
	block := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			block = !block
			continue
		}
		for _, m := range regexp.MustCompile("\\bdsmd ([a-z][^`\n|;&#]*)").FindAllStringSubmatchIndex(line, -1) {
			words, _, _ := strings.Cut(line[m[2]:m[3]], " -- ")
			code := block || strings.HasPrefix(line, "    ") || strings.Count(line[:m[0]], "`")%2 == 1
			list = append(list, calling{strings.Fields(words), code})
		}
	}
	return list
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
