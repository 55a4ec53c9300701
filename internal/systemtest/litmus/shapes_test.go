package litmus

// Shapes are the litmus tests, under the names that the literature gives them.
var Shapes = []*Shape{
	{Name: "SB", Threads: [][]Op{{W(x, 1), R(y)}, {W(y, 1), R(x)}}, Classic: "0:y=0 1:x=0"},
	{Name: "MP", Threads: [][]Op{{W(x, 1), W(y, 1)}, {R(y), R(x)}}, Classic: "1:y=1 1:x=0"},
	{Name: "LB", Threads: [][]Op{{R(x), W(y, 1)}, {R(y), W(x, 1)}}, Classic: "0:x=1 1:y=1"},
	{Name: "S", Threads: [][]Op{{W(x, 2), W(y, 1)}, {R(y), W(x, 1)}}, Final: true, Classic: "1:y=1 [x]=2 [y]=1"},
	{Name: "R", Threads: [][]Op{{W(x, 1), W(y, 1)}, {W(y, 2), R(x)}}, Final: true, Classic: "1:x=0 [x]=1 [y]=2"},
	{Name: "2+2W", Threads: [][]Op{{W(x, 1), W(y, 2)}, {W(y, 1), W(x, 2)}}, Final: true, Classic: "[x]=1 [y]=1"},
	{Name: "WRC", Threads: [][]Op{{W(x, 1)}, {R(x), W(y, 1)}, {R(y), R(x)}}, Classic: "1:x=1 2:y=1 2:x=0"},
	{Name: "RWC", Threads: [][]Op{{W(x, 1)}, {R(x), R(y)}, {W(y, 1), R(x)}}, Classic: "1:x=1 1:y=0 2:x=0"},
	{Name: "ISA2", Threads: [][]Op{{W(x, 1), W(y, 1)}, {R(y), W(z, 1)}, {R(z), R(x)}}, Classic: "1:y=1 2:z=1 2:x=0"},
	{Name: "IRIW", Threads: [][]Op{{W(x, 1)}, {W(y, 1)}, {R(x), R(y)}, {R(y), R(x)}}, Classic: "2:x=1 2:y=0 3:y=1 3:x=0"},
	{Name: "CoRR", Threads: [][]Op{{W(x, 1)}, {R(x), R(x)}}, Classic: "1:x=1 1:x=0"},
	{Name: "CoWR", Threads: [][]Op{{W(x, 1), R(x)}, {W(x, 2)}}, Final: true, Classic: "0:x=2 [x]=1"},
	{Name: "CoRW", Threads: [][]Op{{R(x), W(x, 1)}, {W(x, 2)}}, Final: true, Classic: "0:x=2 [x]=2"},
	{Name: "CoWW", Threads: [][]Op{{W(x, 1), W(x, 2)}, {R(x), R(x)}}, Final: true, Classic: "1:x=2 1:x=1 [x]=2"},
	// A reader of a sequence lock: what it reads between two equal, even numbers (0 or 2) is all
	// old or all new.
	{Name: "seqlock", Threads: [][]Op{
		{W(x, 1), W(y, 1), W(z, 1), W(w, 1), W(x, 2)},
		{R(x), R(y), R(z), R(w), R(x)},
	}, Classic: "1:x=2 1:y=1 1:z=0 1:w=1 1:x=2"},
}
