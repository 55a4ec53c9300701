package e2e

import (
	"path/filepath"
	"testing"

	"dsmd/internal/checkpoint"
)

// words are those of the memory "data" in the tests of checkpoints.
const words = 200 * 512

// TestCheckpointOverOthers: a directory has the checkpoint of a job whose memory had the same names
// and types, but other contents. What a new checkpoint there has is what memory holds, also where
// that is zeros because nobody has touched it.
func TestCheckpointOverOthers(t *testing.T) {
	long(t)
	t.Parallel()
	filled := t.TempDir()
	first := engage(t, 2, 2)
	first.do(t, "ok", "words data %d", words)
	first[0].Do(t, "ok", "stamp data 1 0 %d", words)
	first.do(t, "ok", "save %s", filled)
	first.end(t)
	check := func(t *testing.T, dir string) {
		t.Helper()
		verified(t, dir)
		last := engage(t, 2, 2)
		last.do(t, "restored ", "restore %s", dir)
		last.do(t, "ok", "words data %d", words)
		last[0].Do(t, "ok", "same data 2 0 512")
		last[1].Do(t, "0", "get data 50000")
		last.end(t)
	}
	t.Run("a job that restores nothing", func(t *testing.T) {
		dir := copied(t, filled)
		second := engage(t, 2, 2)
		second.do(t, "ok", "words data %d", words)
		second[0].Do(t, "ok", "stamp data 2 0 512")
		second.do(t, "ok", "save %s", dir)
		second.end(t)
		check(t, dir)
	})
	t.Run("memory that was freed", func(t *testing.T) {
		dir := t.TempDir()
		all := engage(t, 2, 2)
		all.do(t, "ok", "words data %d", words)
		all[0].Do(t, "ok", "stamp data 1 0 %d", words)
		all.do(t, "ok", "save %s", dir)
		all.do(t, "ok", "free data")
		all.do(t, "ok", "words data %d", words)
		all[0].Do(t, "ok", "stamp data 2 0 512")
		all.do(t, "ok", "save %s", dir)
		all.end(t)
		check(t, dir)
	})
	t.Run("a job that restores an older one", func(t *testing.T) {
		dir := t.TempDir()
		all := engage(t, 2, 2)
		all.do(t, "ok", "words data %d", words)
		all[0].Do(t, "ok", "stamp data 2 0 512")
		all.do(t, "ok", "save %s", dir)
		all[1].Do(t, "ok", "stamp data 1 0 %d", words)
		all.do(t, "ok", "save %s", dir)
		all.end(t)
		older := engage(t, 2, 2)
		older.do(t, "restored ", "restore %s", filepath.Join(dir, checkpoint.ManifestName(1)))
		older.do(t, "ok", "words data %d", words)
		older.do(t, "ok", "save %s", dir)
		older.end(t)
		check(t, dir)
	})
	t.Run("memory of a restored job that was freed", func(t *testing.T) {
		all := engage(t, 2, 2)
		all.do(t, "restored ", "restore %s", filled)
		all.do(t, "ok", "words data %d", words)
		all[0].Do(t, "ok", "same data 1 0 %d", words/2)
		all.do(t, "ok", "free data")
		all.do(t, "ok", "words data %d", words)
		all[1].Do(t, "0", "get data 0") // as all memory that is allocated
		all.end(t)
	})
}

// TestCheckpointOfWhatChanged: a checkpoint has the pages that were stored to since the one before,
// and no others, also those after a restore: nobody reads the rest.
func TestCheckpointOfWhatChanged(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	all := engage(t, 2, 2)
	all.do(t, "ok", "words data %d", words)
	all[0].Do(t, "ok", "stamp data 1 0 %d", words/2)
	all[1].Do(t, "ok", "stamp data 1 %d %d", words/2, words)
	all.do(t, "ok", "save %s state=first", dir)
	all[0].Do(t, "ok", "stamp data 2 0 1024")
	all[1].Do(t, "ok", "stamp data 2 1024 2048")
	all.do(t, "ok", "save %s state=second", dir)
	list := listed(t, dir)
	if own := list[1].OwnBytes; own > 4*4200 || own < 4*4096 || list[1].Base != 1 {
		t.Errorf("the second checkpoint has %d bytes of its own, want those of 4 pages", own)
	}
	all.end(t)
	again := engage(t, 3, 3)
	again.do(t, "restored second", "restore %s", dir)
	again.do(t, "ok", "words data %d", words)
	again[2].Do(t, "ok", "same data 1 4096 5120")
	for i := range 4 {
		again[1].Do(t, "ok", "stamp data %d 5120 5632", 3+i)
		again.do(t, "ok", "save %s", dir)
		x := newest(t, dir)
		t.Logf("checkpoint %d has base %d, and %d bytes of its own", x.Sequence, x.Base, x.OwnBytes)
		if x.OwnBytes > 4*4200 {
			t.Errorf("checkpoint %d has %d bytes of its own", x.Sequence, x.OwnBytes)
		}
	}
	verified(t, dir)
	again.do(t, "ok", "save %s", elsewhere)
	x := newest(t, elsewhere)
	verified(t, elsewhere)
	if x.Base != 0 || x.OwnBytes < 8*words {
		t.Errorf("in another directory it has base %d and %d bytes", x.Base, x.OwnBytes)
	}
	again.do(t, "ok", "save %s", elsewhere)
	if x := newest(t, elsewhere); x.Base == 0 || x.OwnBytes > 4*4200 {
		t.Errorf("behind a whole one it has base %d and %d bytes", x.Base, x.OwnBytes)
	}
	again.end(t)
	for _, from := range []string{dir, elsewhere} {
		last := engage(t, 1, 2)
		last.do(t, "restored ", "restore %s", from)
		last.do(t, "ok", "words data %d", words)
		last.do(t, "ok", "same data 2 0 2048")
		last.do(t, "ok", "same data 1 2048 5120")
		last.do(t, "ok", "same data 6 5120 5632")
		last.do(t, "ok", "same data 1 5632 %d", words)
		last.end(t)
	}
}
