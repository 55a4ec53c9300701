package main

import "time"

// Check is one run of a test binary.
type Check struct {
	Name    string
	Package string
	Args    []string
	// Memory bounds the address space, in KiB. 0: none; of packages that map a lot.
	Memory int
	// Survivors says that the check is too long to be run for all, and Named that it is for named
	// mutants that ask for it.
	Survivors, Named bool
}

// memory is enough for the explorer at its default bound. Where a mutant needs more it has been
// found out.
const memory = 6 << 20

// wallPerCPU bounds what a check may wait: so many times what it may compute.
const wallPerCPU = 8

// leastLimit is processor time that each check has, and it has three times what it takes without a
// mutant.
const leastLimit = 10 * time.Second

// checks are those of each package, in the order in which a mutant meets them. None leaves files
// behind: nobody wants to keep the story of a mutant's failure.
var checks = map[string][]Check{
	"protocol": {
		{Name: "scenarios", Package: "protocol/modelcheck", Args: []string{"-test.run", "TestScenarios", "-test.failfast"}, Memory: memory},
		{Name: "model", Package: "protocol/model", Memory: memory},
		{Name: "package", Package: "protocol", Args: []string{"-rapid.nofailfile", "-test.short", "-test.failfast"}, Memory: memory},
		{Name: "simulator, a seed", Package: "protocol/simulator", Args: []string{"-test.run", "Fresh", "-seed", "1", "-first"}, Memory: memory},
		{Name: "explorer, short", Package: "protocol/modelcheck", Args: []string{"-test.run", "Every", "-bound", "short", "-first"}, Memory: memory},
		{Name: "explorer, locks", Package: "protocol/modelcheck", Args: []string{"-test.run", "Every", "-bound", "default", "-family", "lock", "-first"}, Memory: memory},
		{Name: "simulator, four seeds more", Package: "protocol/simulator", Args: []string{"-test.run", "Fresh", "-seed", "2", "-runs", "4", "-first"}, Memory: memory},
		{Name: "package, long", Package: "protocol", Args: []string{"-rapid.nofailfile", "-test.run", "Lies|Mutated|Siege", "-test.failfast"}, Memory: memory},
		{Name: "planted bugs", Package: "protocol/modelcheck", Args: []string{"-test.run", "Planted|Plant|Explore", "-test.failfast"}, Memory: memory},
		{Name: "explorer, default", Package: "protocol/modelcheck", Args: []string{"-test.run", "Every", "-bound", "default", "-first"}, Memory: memory},
		{Name: "explorer, two leave", Package: "protocol/modelcheck", Args: []string{"-test.run", "Every", "-bound", "default", "-family", "two leave", "-first"}, Memory: memory, Named: true},
		{Name: "explorer, the one that leaves is lost", Package: "protocol/modelcheck", Args: []string{"-test.run", "Every", "-bound", "full", "-family", "that leaves is lost", "-first"}, Memory: memory, Named: true},
		{Name: "explorer, coarse copysets", Package: "protocol/modelcheck", Args: []string{"-test.run", "Every", "-bound", "default", "-family", "coarse", "-first"}, Memory: memory, Named: true},
		{Name: "explorer, evicted", Package: "protocol/modelcheck", Args: []string{"-test.run", "Every", "-bound", "default", "-family", "evicted", "-first"}, Memory: memory, Named: true},
		{Name: "simulator, no room", Package: "protocol/simulator", Args: []string{"-test.run", "Fresh/no_room", "-seed", "1", "-runs", "2", "-first"}, Memory: memory, Named: true},
		{Name: "explorer, two threads", Package: "protocol/modelcheck", Args: []string{"-test.run", "Every", "-bound", "default", "-family", "two threads", "-first"}, Memory: memory, Named: true},
		{Name: "explorer, without a quorum", Package: "protocol/modelcheck", Args: []string{"-test.run", "Every", "-bound", "default", "-family", "without a quorum", "-first"}, Memory: memory, Named: true},
		{Name: "simulator, 20 seeds", Package: "protocol/simulator", Args: []string{"-test.run", "Fresh", "-seed", "6", "-runs", "20", "-first"}, Memory: memory, Survivors: true},
		{Name: "explorer, full", Package: "protocol/modelcheck", Args: []string{"-test.run", "Every", "-bound", "full", "-first", "-test.timeout", "60m"}, Memory: 2 * memory, Survivors: true},
	},
	"pagetable": {
		{Name: "package", Package: "pagetable", Args: []string{"-rapid.nofailfile", "-test.failfast"}},
	},
	"internal/agreement": {
		{Name: "package", Package: "internal/agreement", Args: []string{"-test.failfast"}, Memory: memory},
	},
}
