// Command wordcount counts how often each word is in a text. Run it with
// `dsmd run -n 4 -- ./wordcount`.
//
// Every rank reads a part of the text, and combines its counts before they go to a map that all
// share. Then every rank looks through a part of the map, and rank 0 is told what it has found.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"slices"
	"strings"

	"dsmd/dsm"
	"dsmd/dsm/collections"
	"dsmd/dsm/collective"
)

const (
	words      = 300_000 // of the text
	vocabulary = 50_000  // at most so many different ones
	longest    = 32      // bytes of a word
)

func main() {
	ctx := context.Background()
	c, err := dsm.Join(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	var found []collections.Entry[string, int]
	counts, err := count(ctx, c, text(words))
	if err == nil {
		found, err = top(ctx, c, counts, 10)
	}
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range found { // on rank 0
		fmt.Printf("%7d %s\n", e.Value, e.Key)
	}
}

// count returns how often each word is in the text, of which every rank reads its part.
func count(ctx context.Context, c *dsm.Cluster, text []string) (*collections.Map[string, int], error) {
	counts, err := collections.NewMap[string, int](ctx, c, "counts", vocabulary)
	if err != nil {
		return nil, err
	}
	sums := counts.Combine(dsm.Sum[int])
	own := text[len(text)*c.Rank()/c.Size() : len(text)*(c.Rank()+1)/c.Size()]
	for _, word := range own {
		if err := sums.Add(ctx, word, 1); err != nil {
			return nil, err
		}
	}
	return counts, sums.FlushAll(ctx, c)
}

// fixed is a word without a pointer, and its number.
type fixed struct {
	Text [longest]byte
	N    int
}

// top returns the n most frequent words, on rank 0.
func top(ctx context.Context, c *dsm.Cluster, counts *collections.Map[string, int], n int) (found []collections.Entry[string, int], err error) {
	for e, err := range counts.Part(ctx, c.Rank(), c.Size()) {
		if err != nil {
			return nil, err
		}
		found = append(found, e)
	}
	var own []fixed
	for _, e := range most(found, n) {
		f := fixed{N: e.Value}
		copy(f.Text[:], e.Key)
		own = append(own, f)
	}
	all, err := collective.Gather(ctx, c, "top", 0, own)
	found = nil
	for _, f := range slices.Concat(all...) {
		found = append(found, collections.Entry[string, int]{Key: strings.TrimRight(string(f.Text[:]), "\x00"), Value: f.N})
	}
	return most(found, n), err
}

func most(all []collections.Entry[string, int], n int) []collections.Entry[string, int] {
	slices.SortFunc(all, func(a, b collections.Entry[string, int]) int {
		return cmp.Or(cmp.Compare(b.Value, a.Value), strings.Compare(a.Key, b.Key))
	})
	return all[:min(n, len(all))]
}

// text is some text, the same on all ranks: as in a language, a few words are most of it.
func text(n int) []string {
	chance := rand.New(rand.NewPCG(1, 2))
	frequency := rand.NewZipf(chance, 1.1, 3, vocabulary-1)
	text := make([]string, n)
	for i := range text {
		text[i] = fmt.Sprintf("w%o", frequency.Uint64()*2654435761%1e9)
	}
	return text
}
