package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"strconv"
	"strings"
)

// site is a place at which an operator applies, and what it may put there. One of the alternatives
// is drawn.
type site struct {
	operator     string
	alternatives [][]Edit
}

// finder collects the sites of a file.
type finder struct {
	p     *Package
	f     *File
	last  map[ast.Stmt]bool // statements that end a function, where a return changes nothing
	whole map[ast.Expr]bool // conditions as a whole, which are negated once
	sites []site
}

// Sites lists all sites of a file.
func (p *Package) Sites(f *File) []site {
	w := &finder{p: p, f: f, last: map[ast.Stmt]bool{}, whole: map[ast.Expr]bool{}}
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if n == nil || w.isForPeople(n) {
			return false
		}
		w.visit(n)
		return true
	})
	return w.sites
}

// isForPeople reports whether something is left out with all that is in it: texts, and assertions.
func (w *finder) isForPeople(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ImportSpec:
		return true
	case *ast.FuncDecl:
		name := n.Name.Name
		return name == "String" || name == "GoString" || name == "Error"
	case *ast.CallExpr:
		name := w.f.text(n.Fun)
		return name == "panic" || strings.HasPrefix(name, "fmt.") || name == "errors.New"
	case *ast.ExprStmt:
		return w.isPanic(n)
	case *ast.IfStmt:
		return n.Else == nil && len(n.Body.List) == 1 && w.isPanic(n.Body.List[0])
	case *ast.CompositeLit: // a table of names
		switch t := w.p.info.TypeOf(n).Underlying().(type) {
		case *types.Array:
			return isString(t.Elem())
		case *types.Slice:
			return isString(t.Elem())
		case *types.Map:
			return isString(t.Elem())
		}
	}
	return false
}

func (w *finder) isPanic(s ast.Stmt) bool {
	e, ok := s.(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := e.X.(*ast.CallExpr)
	return ok && w.f.text(call.Fun) == "panic"
}

func isString(t types.Type) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsString != 0
}

func isInteger(t types.Type) bool {
	if t == nil {
		return false
	}
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsInteger != 0
}

// replace is an edit of a piece of syntax.
func (w *finder) replace(n ast.Node, text string) Edit {
	return Edit{w.f, w.f.offset(n.Pos()), w.f.offset(n.End()), text}
}

// add notes a site with edits that are alternatives.
func (w *finder) add(operator string, edits ...Edit) {
	s := site{operator: operator}
	for _, e := range edits {
		s.alternatives = append(s.alternatives, []Edit{e})
	}
	w.sites = append(w.sites, s)
}

// swap notes a site at which two pieces of the source change places.
func (w *finder) swap(operator string, from1, to1, from2, to2 token.Pos) {
	a, b, c, d := w.f.offset(from1), w.f.offset(to1), w.f.offset(from2), w.f.offset(to2)
	first, second := string(w.f.Source[a:b]), string(w.f.Source[c:d])
	if strings.TrimSpace(first) == strings.TrimSpace(second) {
		return
	}
	w.sites = append(w.sites, site{operator, [][]Edit{{{w.f, a, b, second}, {w.f, c, d, first}}}})
}

func (w *finder) visit(n ast.Node) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		if n.Body != nil && len(n.Body.List) > 0 {
			w.last[n.Body.List[len(n.Body.List)-1]] = true
		}
	case *ast.IfStmt:
		w.negate(n.Cond)
		if other, ok := n.Else.(*ast.BlockStmt); ok {
			w.swap("arms swapped", n.Body.Pos(), n.Body.End(), other.Pos(), other.End())
		}
	case *ast.ForStmt:
		if n.Cond != nil {
			w.negate(n.Cond)
		}
	case *ast.SwitchStmt:
		w.cases(n.Body, n.Tag == nil)
	case *ast.TypeSwitchStmt:
		w.cases(n.Body, false)
	case *ast.BinaryExpr:
		w.binary(n)
	case *ast.UnaryExpr:
		if n.Op == token.NOT && !w.whole[n] {
			w.add("condition negated", w.replace(n, w.f.text(n.X)))
		}
	case *ast.BasicLit:
		w.literal(n)
	case *ast.Ident:
		w.identifier(n)
	case *ast.CompositeLit:
		w.fields(n)
	case *ast.CallExpr:
		w.arguments(n)
	case ast.Stmt:
		w.statement(n)
	}
}

func (w *finder) statement(s ast.Stmt) {
	switch s := s.(type) {
	case *ast.ExprStmt, *ast.DeferStmt:
		w.add("statement dropped", w.replace(s, ""))
	case *ast.AssignStmt:
		if s.Tok != token.DEFINE {
			w.add("statement dropped", w.replace(s, ""))
		}
		for a, b := range map[token.Token]token.Token{token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN, token.OR_ASSIGN: token.AND_ASSIGN} {
			if s.Tok == a {
				w.operatorAt(s.TokPos, a, b, "operator exchanged")
			}
		}
	case *ast.IncDecStmt:
		w.add("statement dropped", w.replace(s, ""))
		if s.Tok == token.INC {
			w.operatorAt(s.TokPos, token.INC, token.DEC, "operator exchanged")
		} else {
			w.operatorAt(s.TokPos, token.DEC, token.INC, "operator exchanged")
		}
	case *ast.ReturnStmt:
		if !w.last[s] {
			w.add("statement dropped", w.replace(s, ""))
		}
	case *ast.BranchStmt:
		if s.Tok == token.BREAK || s.Tok == token.CONTINUE {
			w.add("statement dropped", w.replace(s, ""))
		}
	}
}

// negate turns a condition as a whole round.
func (w *finder) negate(cond ast.Expr) {
	w.whole[cond] = true
	w.add("condition negated", w.replace(cond, "!("+w.f.text(cond)+")"))
}

// cases drops and swaps the arms of a switch; bare: the switch has no tag.
func (w *finder) cases(body *ast.BlockStmt, bare bool) {
	for i, s := range body.List {
		c := s.(*ast.CaseClause)
		if len(body.List) > 1 && len(c.Body) > 0 {
			w.add("case dropped", w.replace(c, ""))
		}
		if len(c.List) > 1 {
			for j := range c.List[1:] {
				w.add("case dropped", Edit{w.f, w.f.offset(c.List[j].Pos()), w.f.offset(c.List[j+1].Pos()), ""})
			}
			w.add("case dropped", Edit{w.f, w.f.offset(c.List[len(c.List)-2].End()), w.f.offset(c.List[len(c.List)-1].End()), ""})
		}
		if bare && len(c.List) == 1 {
			w.negate(c.List[0])
		}
		if i > 0 {
			before := body.List[i-1].(*ast.CaseClause)
			w.swap("arms swapped", before.Colon+1, before.End(), c.Colon+1, c.End())
		}
	}
}

var exchanged = map[token.Token]struct {
	to   token.Token
	name string
}{
	token.LSS: {token.LEQ, "off by one"}, token.LEQ: {token.LSS, "off by one"},
	token.GTR: {token.GEQ, "off by one"}, token.GEQ: {token.GTR, "off by one"},
	token.EQL: {token.NEQ, "condition negated"}, token.NEQ: {token.EQL, "condition negated"},
	token.ADD: {token.SUB, "operator exchanged"}, token.SUB: {token.ADD, "operator exchanged"},
	token.OR: {token.AND, "operator exchanged"}, token.AND: {token.OR, "operator exchanged"},
	token.SHL: {token.SHR, "operator exchanged"}, token.SHR: {token.SHL, "operator exchanged"},
	token.LAND: {token.LOR, "and, or"}, token.LOR: {token.LAND, "and, or"},
}

func (w *finder) binary(n *ast.BinaryExpr) {
	x, ok := exchanged[n.Op]
	if ok && !(w.whole[n] && x.name == "condition negated") {
		w.operatorAt(n.OpPos, n.Op, x.to, x.name)
	}
	if n.Op == token.LAND || n.Op == token.LOR {
		w.add("condition dropped", w.replace(n, w.f.text(n.X)), w.replace(n, w.f.text(n.Y)))
	}
}

func (w *finder) operatorAt(pos token.Pos, from, to token.Token, name string) {
	at := w.f.offset(pos)
	w.add(name, Edit{w.f, at, at + len(from.String()), to.String()})
}

func (w *finder) literal(n *ast.BasicLit) {
	if n.Kind != token.INT {
		return
	}
	v, err := strconv.ParseUint(n.Value, 0, 63)
	if err != nil {
		return
	}
	edits := []Edit{w.replace(n, strconv.FormatUint(v+1, 10))}
	if v > 0 {
		edits = append(edits, w.replace(n, strconv.FormatUint(v-1, 10)))
	}
	w.add("off by one", edits...)
}

// identifier exchanges true and false, and constants of one enumeration.
func (w *finder) identifier(n *ast.Ident) {
	used := w.p.info.Uses[n]
	switch used {
	case types.Universe.Lookup("true"):
		w.add("constant exchanged", w.replace(n, "false"))
		return
	case types.Universe.Lookup("false"):
		w.add("constant exchanged", w.replace(n, "true"))
		return
	}
	c, ok := used.(*types.Const)
	if !ok || c.Pkg() != w.p.types || c.Parent() != w.p.types.Scope() {
		return
	}
	if _, named := c.Type().(*types.Named); !named {
		return
	}
	var edits []Edit
	for _, name := range w.p.types.Scope().Names() {
		other, ok := w.p.types.Scope().Lookup(name).(*types.Const)
		if ok && other != c && types.Identical(other.Type(), c.Type()) {
			edits = append(edits, w.replace(n, name))
		}
	}
	if len(edits) > 0 {
		w.add("constant exchanged", edits...)
	}
}

// fields drops fields of a struct that is written down.
func (w *finder) fields(n *ast.CompositeLit) {
	if _, ok := w.p.info.TypeOf(n).Underlying().(*types.Struct); !ok {
		return
	}
	for i, e := range n.Elts {
		if _, ok := e.(*ast.KeyValueExpr); !ok {
			return
		}
		start, end := w.f.offset(e.Pos()), w.f.offset(e.End())
		switch {
		case i+1 < len(n.Elts):
			end = w.f.offset(n.Elts[i+1].Pos())
		case i > 0:
			start = w.f.offset(n.Elts[i-1].End())
		case w.f.Source[end] == ',':
			end++
		}
		w.add("field dropped", Edit{w.f, start, end, ""})
	}
}

// arguments swaps neighbours of the same type.
func (w *finder) arguments(n *ast.CallExpr) {
	for i := range len(n.Args) - 1 {
		a, b := n.Args[i], n.Args[i+1]
		s, t := w.p.info.TypeOf(a), w.p.info.TypeOf(b)
		if s != nil && t != nil && types.Identical(s, t) && isInteger(s) {
			w.swap("arguments swapped", a.Pos(), a.End(), b.Pos(), b.End())
		}
	}
}
