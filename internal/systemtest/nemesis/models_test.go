package nemesis

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// models is how places behave that are used by one client at a time, by their kind. What is in
// doubt may have happened or not. There is none for progress, which has no value.
var models = map[string]*porcupine.NondeterministicModel{
	plainKind:   wordModel(stepRegister),
	replicaKind: wordModel(stepRegister),
	heapKind:    wordModel(stepRegister),
	mapKind:     wordModel(stepKey),
	queueKind:   {Init: func() []any { return []any{lane{}} }, Step: stepLane},
	"other":     nil,
	"sum":       wordModel(stepSum),
	"lock":      {Init: func() []any { return []any{nobody} }, Step: stepLock},
	"progress":  nil,
}

// word is a place in shared memory. Once it is lost nothing is there that can be read or written.
type word struct {
	value uint64
	lost  bool
}

// wordModel is the model of a word that can be lost, of which step says what becomes of the value,
// and whether what the operation has found can be.
func wordModel(step func(value uint64, o Operation) (becomes uint64, possible bool)) *porcupine.NondeterministicModel {
	return &porcupine.NondeterministicModel{
		Init: func() []any { return []any{word{}} },
		Step: func(state, input, _ any) (next []any) {
			w, o := state.(word), input.(Operation)
			if !o.known() {
				next = append(next, w)
			}
			switch {
			case o.Lost:
				return append(next, word{lost: true})
			case w.lost:
				return next
			}
			if becomes, possible := step(w.value, o); possible {
				next = append(next, word{value: becomes})
			}
			return next
		},
	}
}

func stepRegister(value uint64, o Operation) (becomes uint64, possible bool) {
	switch o.Do {
	case read:
		return value, !o.known() || o.Got == value
	case write:
		return o.New, true
	case swap:
		matches := value == o.Old
		if o.known() && matches != (o.Got == 1) {
			return value, false
		}
		if matches {
			return o.New, true
		}
		return value, true
	}
	return value, false
}

func stepSum(value uint64, o Operation) (becomes uint64, possible bool) {
	switch o.Do {
	case read:
		return value, !o.known() || o.Got == value
	case add:
		return value + 1, !o.known() || o.Got == value+1
	}
	return value, false
}

// stepKey is a key of a map, 0 if it is not there.
func stepKey(value uint64, o Operation) (becomes uint64, possible bool) {
	if o.Do == add {
		return stepSum(value, o)
	}
	return stepRegister(value, o)
}

// nobody holds a lock that is free.
var nobody = client{Workload: -1, Rank: -1}

func stepLock(state, input, _ any) (next []any) {
	holder, o := state.(client), input.(Operation)
	if !o.known() {
		next = append(next, holder) // it was not given the lock, or has lost it, when it died
	}
	possible := false
	switch {
	case o.Do == release:
		if holder == o.client {
			next = append(next, nobody)
		}
		return next
	case !o.known():
		possible = true // as those below: it is not known what it would have been told
	case o.Got == fromDead:
		// Who holds it is dead, so a life of that rank that is still at work shows in the next
		// thing that it does with the lock.
		possible = holder != nobody && holder.Rank == o.Dead
	case o.Got == fromLost:
		// That node had the lock last, or another lost one had, so whoever held it was there, or
		// nobody did.
		possible = holder == nobody || o.lost.of(holder) != nil
	default:
		possible = holder == nobody
	}
	if possible {
		next = append(next, o.client)
	}
	return next
}

// checkLimit bounds the check of one place. What takes longer is a violation, because nothing was
// checked.
const checkLimit = time.Minute

// errNotLinearizable is wrapped when the operations at a place can't have happened one after
// another, each between its call and its return.
var errNotLinearizable = errors.New("no order of these operations explains what they found")

// violation is a place whose operations are not explained.
type violation struct {
	place      string
	operations []Operation
	err        error
}

// check checks the operations at each place by themselves, and whether what was lost may have been
// lost with these hosts.
func check(all []Operation, lost deaths, kept keeping, limit time.Duration) (violations []violation) {
	all = inLanes(lost.doubt(all))
	violations = lost.unjustified(all, kept)
	byPlace := map[string][]Operation{}
	for _, o := range all {
		if !o.Void && !o.idle() {
			byPlace[o.Place] = append(byPlace[o.Place], o)
		}
	}
	generation := generations(all)
	for _, p := range slices.Sorted(maps.Keys(byPlace)) {
		if err := explain(byPlace[p], generation, limit); err != nil {
			violations = append(violations, violation{p, byPlace[p], fmt.Errorf("%s, %d operations: %w", p, len(byPlace[p]), err)})
		}
	}
	return violations
}

func checkPlace(all []Operation, limit time.Duration) error {
	model, known := models[all[0].kind()]
	if !known {
		return errors.New("there is no model for places of its kind")
	}
	if model == nil {
		return nil
	}
	switch porcupine.CheckOperationsTimeout(model.ToModel(), forPorcupine(all), limit) {
	case porcupine.Illegal:
		return errNotLinearizable
	case porcupine.Unknown:
		return fmt.Errorf("%w, or so it may be: it could not be checked within %v", errNotLinearizable, limit)
	}
	return nil
}

// forPorcupine is the operations at a place as porcupine takes them, which draws each client as a
// line.
func forPorcupine(all []Operation) []porcupine.Operation {
	lines := map[client]int{}
	operations := make([]porcupine.Operation, len(all))
	for i, o := range all {
		if _, drawn := lines[o.client]; !drawn {
			lines[o.client] = len(lines)
		}
		operations[i] = porcupine.Operation{ClientId: lines[o.client], Input: o, Call: o.Call, Return: o.Return}
	}
	return operations
}

// describe is an operation in words, for the drawing.
func describe(input, _ any) string {
	o := input.(Operation)
	text := fmt.Sprintf("%s of rank %d, life %d, thread %d", o.Do, o.client.Rank, o.client.Life, o.client.Thread)
	switch o.Do {
	case write, swap:
		text += fmt.Sprintf(": %d to %d", o.Old, o.New)
	case put:
		text += fmt.Sprintf(": %d", o.New)
	}
	switch {
	case !o.known():
		text += ", maybe"
	case o.Lost:
		text += fmt.Sprintf(", lost with node %d", o.Dead)
	case o.Do == acquire && o.Got == fromDead:
		text += fmt.Sprintf(", from dead rank %d", o.Dead)
	case o.Do == acquire && o.Got == fromLost:
		text += fmt.Sprintf(", from lost node %d", o.Dead)
	case o.Do == read, o.Do == swap, o.Do == add, o.Do == take:
		text += fmt.Sprintf(", got %d", o.Got)
	}
	return text
}

// draw writes, as a page for a browser, how far porcupine gets with the operations at a place.
// Preconditions: their places have a model with steps.
func draw(all []Operation, limit time.Duration, path string) error {
	model := models[all[0].kind()].ToModel()
	model.DescribeOperation = describe
	_, info := porcupine.CheckOperationsVerbose(model, forPorcupine(all), limit)
	if err := porcupine.VisualizePath(model, info, path); err != nil {
		return fmt.Errorf("nemesis: drawing %s: %w", all[0].Place, err)
	}
	return nil
}
