package simulator

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

var (
	seed  = flag.Uint64("seed", 0, "the first seed of TestFreshSeeds; 0: a new one")
	runs  = flag.Int("runs", 1, "how many seeds TestFreshSeeds tries, from -seed upwards")
	first = flag.Bool("first", false, "end with the first seed that fails")
	trace = flag.String("save", "", "file for the trace of the last run that failed, or of the last")
)

// checkLimit is the patience with the linearizability of one page. It is normally decided in
// milliseconds.
const checkLimit = 10 * time.Minute

// simulate runs one profile with one seed and checks everything.
func simulate(t *testing.T, p Profile, s uint64) {
	t.Helper()
	o := Generate(p, s)
	r, err := Run(o)
	if err == nil {
		err = CheckLinearizable(r.History, checkLimit)
	}
	t.Logf("%s, seed %d: %d nodes, %d steps, %d accesses, %d faults, %d messages, %d µs, trace %016x",
		p.Name, s, o.Config.Nodes, r.Steps, r.Accesses, r.Faults, r.Messages, r.Ended, r.TraceHash)
	if *trace != "" && (err != nil || !t.Failed()) {
		saveTrace(t, o)
	}
	if err != nil {
		t.Errorf("%s, seed %d: %v", p.Name, s, err)
		if *first {
			t.FailNow()
		}
	}
}

// saveTrace runs once more, which gives the same trace, and writes it to the file that -save names.
func saveTrace(t *testing.T, o Options) {
	f, err := os.Create(*trace)
	if err != nil {
		t.Fatal(err)
	}
	o.Trace = f
	_, _ = Run(o) // its result is known
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestFreshSeeds tries what nobody has tried before. Its log names the seed.
func TestFreshSeeds(t *testing.T) {
	from := *seed
	if from == 0 {
		from = uint64(time.Now().UnixNano())
	}
	for i := range *runs {
		for _, p := range Profiles() {
			if p.Light && (*runs == 1 || i > 0) {
				continue // the largest clusters take as long as all the others
			}
			simulate(t, p, from+uint64(i))
		}
	}
}

// TestSameSeedSameTrace: a failure that can not be repeated can not be understood.
func TestSameSeedSameTrace(t *testing.T) {
	hashes := map[uint64]string{}
	for _, p := range Profiles() {
		if p.Light {
			continue
		}
		var traces [2]bytes.Buffer
		var reports [2]*Report
		for i := range traces {
			o := Generate(p, 7)
			o.Trace = &traces[i]
			var err error
			if reports[i], err = Run(o); err != nil {
				t.Fatalf("%s: %v", p.Name, err)
			}
		}
		if !bytes.Equal(traces[0].Bytes(), traces[1].Bytes()) || reports[0].TraceHash != reports[1].TraceHash {
			t.Errorf("%s: two runs of one seed differ", p.Name)
		}
		if other := hashes[reports[0].TraceHash]; other != "" {
			t.Errorf("%s and %s give the same trace", p.Name, other)
		}
		hashes[reports[0].TraceHash] = p.Name
	}
	p := Profiles()[0]
	other, err := Run(Generate(p, 8))
	if err != nil {
		t.Fatalf("%s: %v", p.Name, err)
	}
	if hashes[other.TraceHash] != "" {
		t.Errorf("%s: seeds 7 and 8 give the same trace", p.Name)
	}
}

// rare are seeds that show what most others of a profile don't, to try early. Where they do so no
// more the test takes longer.
var rare = map[string]uint64{
	"locks and deaths": 4, "locks by words, losses": 5, "no room, replicas, leaves, joins and losses, pages begin anew": 5,
	"leaves, joins and barriers": 4, "trees, leaves, joins and losses": 12, "copies through trees, leaves, joins and losses": 6,
	"pages and copies through trees, leaves, joins and losses": 10, "several leave together": 4,
}

// TestProfilesDoWhatTheySay: injections that never happen test nothing. Few clients die, or give
// up, at the worst moment, so there are several seeds.
func TestProfilesDoWhatTheySay(t *testing.T) {
	for _, p := range Profiles() {
		wanted := map[string]bool{
			"fault again": !p.Light && !p.Names, "fault spuriously": !p.Light && !p.Names, "fault late": !p.Light && !p.Names,
			"die\n": p.Deaths > 0, "from the dead": p.Deaths > 0 && !p.Names, "turned away": p.Deaths > 0 && !p.Names, "intact": p.Deaths > 0 && !p.Names, "cancel: ": p.Cancels > 0, "hold over": !p.Names,
			"bound\n": p.Names, "status 4": p.Names, "cancel: bind": p.Names,
			"crash\n": p.Losses > 0, "told that it is lost": p.Losses > 0 && p.Replicas == 0 && !p.Names && !p.Light, "depart\n": p.Leaves > 0, "resume, epoch": p.Losses > 0,
			"committed\n": p.Replicas > 0, "data of backup": p.Replicas > 0, " anew\n": p.Anew, "  begins\n": p.Anew,
			"prefetch-write": p.Prefetches > 0, "rlock": p.Sections > 0, "BarrierOpen": p.Rounds > 0 && !p.Trees && p.Nodes < protocol.DefaultTreeFrom,
			"cut off\n": p.Cut > 0, " block\n": p.Cut > 0, " end\n": p.Cut > 1, " return\n": p.Cut > 1, " take: lock": p.Words, " ask: ": p.Words, " expel\n": p.Expelled > 0, "BarrierBroadcast": p.Trees && p.Rounds > 0, "barrier 1000": p.Rounds > 0,
			" others=": p.Trees && p.Rounds == 0, "send Verify ": p.Trees && p.Rounds == 0,
		}
		maps.DeleteFunc(wanted, func(_ string, want bool) bool { return !want })
		seeds := []uint64{1, cmp.Or(rare[p.Name], 2)}
		for seed := range uint64(20) {
			seeds = append(seeds, seed+1)
		}
		for _, seed := range seeds {
			if len(wanted) == 0 {
				break
			}
			var text bytes.Buffer
			o := Generate(p, seed)
			o.Trace = &text
			if _, err := Run(o); err != nil {
				t.Fatalf("%s: %v", p.Name, err)
			}
			maps.DeleteFunc(wanted, func(what string, _ bool) bool { return bytes.Contains(text.Bytes(), []byte(what)) })
		}
		for what := range wanted {
			t.Errorf("%s: no %q in the traces", p.Name, what)
		}
	}
}

// TestPlantedBugsAreFound: the simulator's checks can fail, each planted bug shows it.
// ForgottenZero shows in the first access already, most others need two nodes to meet, some a
// third.
func TestPlantedBugsAreFound(t *testing.T) {
	for _, plant := range model.Plants() {
		t.Run(plant.String(), func(t *testing.T) {
			profile, seeds := Profiles()[0], uint64(1)
			switch plant {
			case model.StaleHolder, model.ForgottenHolder:
				profile = named("losses")
			case model.ReplicaAckedEarly, model.ForgottenCopy:
				profile = named("replicas")
			case model.LostArrivals:
				profile = named("trees")
			case model.ForgottenOthers, model.AckedUnheard:
				profile = named("copies through trees")
			case model.ForgottenTakers, model.LostEnd:
				profile = named("pages and copies through trees")
			case model.ConfirmedEarly:
				// of which few lose a relay after it has confirmed, and before it has passed on
				profile, seeds = named("trees and losses"), 20
			case model.AnewAnyway:
				// of which few have two nodes ask for the same page
				profile, seeds = named("losses, pages begin anew"), 20
			case model.DroppedOffer:
				profile = named("no room")
			case model.SkippedProgram, model.ReadBeforeProtected:
				profile = named("several programs")
			case model.KeptWord, model.PublishedUnasked:
				profile = named("locks by words")
			case model.WordsWithoutQuorum, model.GrantedWithoutQuorum:
				// of which few have a lock that is free, or on its way, at the right moment
				profile, seeds = named("cut off, words"), 60
			case model.DuplicatedAck, model.LostInvalidation, model.LostDone:
				profile = Profiles()[1]
			}
			var v *model.Violation
			for seed := uint64(1); seed <= seeds && v == nil; seed++ {
				o := Generate(profile, seed)
				o.Config.Plant = plant
				if _, err := Run(o); !errors.As(err, &v) && seed == seeds {
					t.Fatalf("the run ended with %v", err)
				}
			}
			t.Log(v)
		})
	}
}

func named(name string) Profile {
	all := Profiles()
	return all[slices.IndexFunc(all, func(p Profile) bool { return p.Name == name })]
}

// TestDeadlineIsKept: a run that takes longer than allowed is an error and not a long test.
func TestDeadlineIsKept(t *testing.T) {
	o := Generate(Profiles()[0], 1)
	o.Deadline = 1000
	if _, err := Run(o); !errors.Is(err, ErrNotLive) {
		t.Errorf("the run ended with %v, want ErrNotLive", err)
	}
}

func TestCheckLinearizable(t *testing.T) {
	page := protocol.PageObject(4)
	for name, c := range map[string]struct {
		history []Access
		want    error
	}{
		"nothing":             {nil, nil},
		"read before a write": {[]Access{{page, 0, true, 1, 5, 6, 0}, {page, 1, false, 0, 1, 2, 0}}, nil},
		"overlapping":         {[]Access{{page, 0, true, 1, 1, 9, 0}, {page, 1, false, 0, 2, 3, 0}, {page, 2, false, 1, 4, 5, 0}}, nil},
		"stale read":          {[]Access{{page, 0, true, 1, 1, 2, 0}, {page, 1, false, 0, 3, 4, 0}}, ErrNotLinearizable},
		"read goes back": {[]Access{{page, 0, true, 1, 1, 9, 0}, {page, 1, false, 1, 2, 3, 0}, {page, 2, false, 0, 4, 5, 0}},
			ErrNotLinearizable},
		"two writes of one version": {[]Access{{page, 0, true, 1, 1, 2, 0}, {page, 1, true, 1, 3, 4, 0}}, ErrNotLinearizable},
		"begun anew":                {[]Access{{page, 0, true, 1, 1, 2, 0}, {page, 1, false, 0, 3, 4, 1}, {page, 1, true, 1, 5, 6, 1}}, nil},
		"pages apart":               {[]Access{{page, 0, true, 1, 1, 2, 0}, {page + 1, 1, false, 0, 3, 4, 0}}, nil},
	} {
		if err := CheckLinearizable(c.history, checkLimit); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestDecisiveDecides: the reads that are left out do not change what the checker finds, in
// histories of few threads that are right, and in those where one read has returned another
// version.
func TestDecisiveDecides(t *testing.T) {
	verdicts := map[bool]int{}
	for seed := range uint64(3000) {
		history := randomHistory(rand.New(rand.NewPCG(seed, 0)), 4, 12)
		whole := make([]porcupine.Operation, len(history))
		for i, a := range history {
			whole[i] = porcupine.Operation{ClientId: a.Thread, Input: a.Write, Output: a.Version, Call: a.Call, Return: a.Return}
		}
		want := porcupine.CheckOperations(register, whole)
		if err := CheckLinearizable(history, checkLimit); (err == nil) != want {
			t.Fatalf("seed %d: %v, and with all reads linearizable is %v: %+v", seed, err, want, history)
		}
		verdicts[want]++
	}
	if verdicts[true] < 300 || verdicts[false] < 300 {
		t.Errorf("of the histories %v were linearizable: hardly a comparison", verdicts)
	}
}

// TestManyReadersAreDecided: with all reads of this history the search took more than a minute
// (seed 1795270438920632835 of the profile "hot page, many readers" was such a one).
func TestManyReadersAreDecided(t *testing.T) {
	for seed := range uint64(20) {
		if err := CheckLinearizable(randomHistory(rand.New(rand.NewPCG(seed, 1)), 24, 80), checkLimit); errors.Is(err, errUndecided) {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// randomHistory is what threads do to one page, each access with an instant between its call and
// its return; in every second history one access has seen, or made, the version next to the right
// one.
func randomHistory(r *rand.Rand, threads, accesses int) []Access {
	var history []Access
	clock, version, busy := int64(0), uint32(0), make([]*Access, threads)
	tick := func() int64 { clock++; return clock }
	for range threads * accesses {
		thread := r.IntN(threads)
		switch a := busy[thread]; {
		case a == nil:
			busy[thread] = &Access{Page: protocol.PageObject(0), Thread: thread, Write: r.IntN(8) == 0, Call: tick(), Return: 0}
		case a.Return == 0: // its instant
			if a.Write {
				version++
			}
			a.Version, a.Return = version, 1
		default:
			a.Return = tick()
			history = append(history, *a)
			busy[thread] = nil
		}
	}
	for _, a := range busy {
		if a != nil && a.Return != 0 {
			a.Return = tick()
			history = append(history, *a)
		}
	}
	if r.IntN(2) == 0 && len(history) > 0 {
		history[r.IntN(len(history))].Version++
	}
	return history
}
