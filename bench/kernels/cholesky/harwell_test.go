package cholesky

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// write writes a matrix as readMatrix and the original read it.
func write(w io.Writer, m *matrix, title string) error {
	var begins, rows []int
	for column := range m.size() {
		begins = append(begins, len(rows)+1)
		rows = append(rows, column+1)
		for _, row := range m.neighbours(column) {
			if int(row) > column {
				rows = append(rows, int(row)+1)
			}
		}
	}
	begins = append(begins, len(rows)+1)
	lines := func(count int) int { return (count + 9) / 10 }
	var text bytes.Buffer
	fmt.Fprintf(&text, "%-72.72s%-8s\n", title, "dsmd")
	fmt.Fprintf(&text, "%14d%14d%14d%14d%14d\n", lines(len(begins))+lines(len(rows)), lines(len(begins)), lines(len(rows)), 0, 0)
	fmt.Fprintf(&text, "%-14s%14d%14d%14d%14d\n", "PSA", m.size(), m.size(), len(rows), 0)
	fmt.Fprintf(&text, "%-16s%-16s%40s\n", "(10I8)", "(10I8)", "")
	for _, numbers := range [][]int{begins, rows} {
		for line := range slices.Chunk(numbers, 10) {
			for _, n := range line {
				fmt.Fprintf(&text, "%8d", n)
			}
			text.WriteByte('\n')
		}
	}
	_, err := w.Write(text.Bytes())
	return err
}

func written(t testing.TB, m *matrix) string {
	t.Helper()
	var text strings.Builder
	if err := write(&text, m, "a matrix of the tests"); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

func TestReadsWhatWasWritten(t *testing.T) {
	for _, m := range []*matrix{grid(1), grid(2), grid(7), dense(30), scattered(200, 1)} {
		got, err := readMatrix(strings.NewReader(written(t, m)))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.starts, m.starts) || !slices.Equal(got.rows, m.rows) || got.diagonal != m.diagonal {
			t.Errorf("%d equations: another matrix was read than was written", m.size())
		}
	}
}

// small is the matrix with elements (1,1) (3,1) (2,2) (3,3), in the layout of the original's
// inputs, which leave out much that the format has.
const small = `                                                                        
             2             1             1             0             0
PSA                        3             3             4             0
(12I6)          (16I5)                                                  
     1     3     4     5
    1    3    2    3
`

func TestReads(t *testing.T) {
	for name, text := range map[string]string{
		"as it is":              small,
		"carriage returns":      strings.ReplaceAll(small, "\n", "\r\n"),
		"rows in another order": strings.Replace(small, "    1    3    2", "    3    1    2", 1),
		"numbers of elements":   strings.Replace(small, "PSA", "RSA", 1) + " 4.0 -1.0 4.0 4.0\n",
		"lower case":            strings.Replace(strings.Replace(small, "PSA", "psa", 1), "(12I6)", "(12i6)", 1),
		"one number a line":     strings.Replace(strings.Replace(small, "(16I5)", "(I5)  ", 1), "    1    3    2    3", "    1\n    3\n    2\n    3", 1),
		"right-hand sides": strings.Replace(strings.Replace(small, "             1             0             0\nPSA",
			"             1             0             1\nPSA", 1), "     1     3     4", "F                          1             1\n     1     3     4", 1),
	} {
		m, err := readMatrix(strings.NewReader(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.Equal(m.starts, []int32{0, 1, 1, 2}) || !slices.Equal(m.rows, []int32{2, 0}) || m.diagonal != 2.1 {
			t.Errorf("%s: read %v", name, *m)
		}
	}
}

func TestSaysWhatIsWrong(t *testing.T) {
	for name, tc := range map[string]struct{ old, new, says string }{
		"nothing":             {small, "", "line 1: the file ends before it"},
		"only a title":        {small, "title\n", "line 2: the file ends before it"},
		"not symmetric":       {"PSA", "RUA", `line 3: the type is "RUA", want PSA or RSA`},
		"not square":          {"PSA                        3", "PSA                        4", "line 3: 4 rows and 3 columns"},
		"no size":             {"PSA                        3", "PSA                        x", `line 3: columns 15 to 28 have "x", want how many rows`},
		"too large":           {"PSA                        3", "PSA                  2000000", "a number from 1 to 1048576"},
		"fewer than diagonal": {"           4             0", "           2             0", `line 3: columns 43 to 56 have "2"`},
		"no format":           {"(12I6)", "(12F6)", `line 4: columns 1 to 16 have "(12F6)", want a format such as (12I6)`},
		"zero width":          {"(16I5)", "(16I0)", "line 4: columns 17 to 32"},
		"wide":                {"(16I5)", "(999I9)", "line 4: columns 17 to 32"},
		"starts at 2":         {"     1     3", "     2     3", "line 5: the columns begin at 2"},
		"ends early":          {"     4     5", "     4     4", "line 5: the columns begin at 1 and end before 4"},
		"empty column":        {"     3     4", "     4     4", "line 5: column 2 begins at 4 and column 3 at 4"},
		"backwards":           {"     3     4", "     4     3", "line 5: column 2 begins at 4 and column 3 at 3"},
		"not a number":        {"    3    2    3", "    3    ?    3", `line 6: columns 11 to 15 have "?", want row, a number from 1 to 3`},
		"row too large":       {"    3    2    3", "    4    2    3", `line 6: columns 6 to 10 have "4"`},
		"row missing":         {"    3    2    3", "    3    2", `line 6: columns 16 to 20 have ""`},
		"no rows":             {"    1    3    2    3\n", "", "line 6: the file ends before it; want number 1 of 4"},
		"above the diagonal":  {"    3    2    3", "    3    2    1", "column 3 has an element in row 1, above the diagonal"},
		"no diagonal":         {"    1    3    2    3", "    3    2    2    3", "column 1 has no element on the diagonal"},
		"twice":               {"    1    3    2    3", "    1    1    2    3", "column 1 has two elements in row 1"},
		"endless line":        {"    1    3    2    3", strings.Repeat(" ", 5000), "line 6: it is longer than 1024 bytes"},
	} {
		text := strings.Replace(small, tc.old, tc.new, 1)
		if text == small {
			t.Errorf("%s: the text is unchanged", name)
		}
		_, err := readMatrix(strings.NewReader(text))
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want an ErrFormat with %q", name, err, tc.says)
		}
	}
	broken := errors.New("broken")
	if _, err := readMatrix(iotest.ErrReader(broken)); !errors.Is(err, broken) || errors.Is(err, ErrFormat) {
		t.Errorf("a file that can't be read: %v", err)
	}
}

// FuzzReadMatrix: any input ends in an error or in a matrix that is read again from what is written
// of it.
func FuzzReadMatrix(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte(written(f, grid(3))))
	f.Add([]byte(written(f, scattered(20, 2))))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := readMatrix(bytes.NewReader(text))
		if err != nil {
			return
		}
		again, err := readMatrix(strings.NewReader(written(t, m)))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(again.starts, m.starts) || !slices.Equal(again.rows, m.rows) {
			t.Error("another matrix was read than was written")
		}
	})
}
