package settings

import "strings"

// Distance is the number of letters to insert, delete or replace to make b of a. Names that differ
// by little are offered to people who have mistyped one.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// nearest names the setting whose name differs least from what was written, if there is one that
// may have been meant.
func nearest(name string) string {
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	best, least := "", 3
	for i := range All {
		if d := Distance(name, All[i].Name); d < least {
			best, least = All[i].Name, d
		}
	}
	if best == "" {
		return ""
	}
	return ": did you mean " + best + "?"
}
