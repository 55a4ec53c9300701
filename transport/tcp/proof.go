package tcp

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"golang.org/x/sys/unix"

	"dsmd/transport"
)

// SecretBytes is the length of Config.Secret.
const SecretBytes = 32

const (
	// nonceBytes is the length of what each side of a connection draws anew, so that nothing said
	// by another connection proves anything here.
	nonceBytes = 32
	// openingRestBytes is what follows the prefix of an opening: whether its sender has a secret,
	// u8, and the nonce.
	openingRestBytes = 1 + nonceBytes
	// tagBytes is the length of a tag.
	tagBytes = sha256.Size
)

// opening is the first that each side says. It has the prefix that greetings of all versions have,
// so that nodes of different versions can tell each other what differs. Nothing in it is believed:
// the tags that follow are made from it.
type opening struct {
	version uint16
	node    transport.NodeID
	secret  bool // the sender has a secret: for the error that names what is wrong
	nonce   [nonceBytes]byte
}

// newOpening draws a nonce.
func (c *credentials) newOpening() opening {
	o := opening{version: c.mine.version, node: c.mine.node, secret: c.secret != nil}
	_, _ = rand.Read(o.nonce[:]) // it never fails: the program crashes instead
	return o
}

// appendOpening appends o in wire form.
func appendOpening(b []byte, o opening) []byte {
	b = appendPrefix(b, o.version, o.node, openingRestBytes)
	b = append(b, 0)
	if o.secret {
		b[len(b)-1] = 1
	}
	return append(b, o.nonce[:]...)
}

// readOpening reads what appendOpening wrote, and not a byte more. Of an opening in another version
// it understands the version and the node alone.
func readOpening(r io.Reader) (opening, error) {
	var buf [greetingPrefixBytes + maxGreetingRest]byte
	version, node, rest, err := readPrefixed(r, &buf)
	if err != nil {
		return opening{}, err
	}
	o := opening{version: version, node: node}
	if version != WireVersion {
		return o, nil
	}
	if len(rest) != openingRestBytes || rest[0] > 1 {
		return opening{}, fmt.Errorf("its opening has %d bytes behind the prefix, and version %d has %d", len(rest), WireVersion, openingRestBytes)
	}
	o.secret = rest[0] == 1
	copy(o.nonce[:], rest[1:])
	return o, nil
}

// side says who speaks in a handshake. It is part of each tag, so that what one side says proves
// nothing when the other says it.
type side byte

const (
	calling side = 'C' // who has made the connection
	called  side = 'A' // who has accepted it
)

func (s side) other() side { return calling + called - s }

// proven is a connection during the handshake. The two sides take turns, and from the second on
// each turn ends with a tag: a MAC, under the secret, of all that both have said until then, and of
// the side. So each knows that the other has the secret, that it speaks now, since both nonces are
// in the MAC, and that nobody has changed a byte: neither who speaks to whom nor what about.
// Without a secret the key is empty, and tags prove nothing.
type proven struct {
	conn   io.ReadWriter
	secret []byte
	own    side
	said   hash.Hash // of all that both sides have said
}

func newProven(conn io.ReadWriter, secret []byte, own side) *proven {
	return &proven{conn: conn, secret: secret, own: own, said: sha256.New()}
}

// Read implements io.Reader.
func (p *proven) Read(b []byte) (int, error) {
	n, err := p.conn.Read(b)
	p.said.Write(b[:n])
	return n, err
}

// say takes a turn without a tag: the first.
func (p *proven) say(b []byte) error {
	p.said.Write(b)
	_, err := p.conn.Write(b)
	return err
}

// prove takes a turn.
func (p *proven) prove(b []byte) error {
	p.said.Write(b)
	tag := p.tag(p.own)
	p.said.Write(tag)
	_, err := p.conn.Write(append(b, tag...))
	return err
}

// check reads the tag that ends the other side's turn. Nothing that was read before may be believed
// until it has returned nil.
func (p *proven) check() error {
	want := p.tag(p.own.other())
	var tag [tagBytes]byte
	if _, err := io.ReadFull(p, tag[:]); err != nil {
		return err
	}
	if !hmac.Equal(tag[:], want) {
		return errUnproven
	}
	return nil
}

func (p *proven) tag(of side) []byte {
	m := hmac.New(sha256.New, p.secret)
	m.Write([]byte{byte(of)})
	m.Write(p.said.Sum(nil))
	return m.Sum(nil)
}

// errUnproven is the error for a tag that was made with another secret, over other words, or for
// another connection.
var errUnproven = errors.New("its proof is wrong")

// strangerTo says that the other side does not know this node's secret, as far as this can be told,
// and what to do.
func (o *opening) strangerTo(mine *opening) error {
	what := "its secret is not this node's"
	switch {
	case !mine.secret && !o.secret:
		return errors.New("it has ended the handshake")
	case mine.secret && !o.secret:
		what = "it was given no secret, and this node has one"
	case !mine.secret && o.secret:
		what = "it has a secret, and this node was given none"
	}
	return impostor(what + ": give all nodes of a cluster the same secret (--secret-file, which is read by one user alone) or certificates; " +
		"if this is none of them, another user of this machine tries to come in")
}

// meet begins a handshake as the side that has called. When it returns nil the other side has
// proven that it knows the secret.
func (c *credentials) meet(p *proven) error {
	mine := c.newOpening()
	if err := p.say(appendOpening(nil, mine)); err != nil {
		return err
	}
	theirs, err := readOpening(p)
	switch {
	// In TLS 1.3 the side that has called learns only now what the other thinks of its certificate.
	case isAlert(err):
		return c.explainTLS(err)
	case err != nil:
		return err
	case theirs.version != mine.version:
		return refusal(otherVersion(mine.version, theirs.version))
	}
	// One that does not know the secret is told nothing more: that this node hangs up says what it
	// has to know.
	if err = p.check(); errors.Is(err, errUnproven) {
		return theirs.strangerTo(&mine)
	}
	return err
}

// beMet is meet for the side that was called. When it returns nil the caller has proven that it
// knows the secret, and the greeting is its own.
func (c *credentials) beMet(p *proven) (greeting, error) {
	theirs, err := readOpening(p)
	if err != nil {
		return greeting{}, err
	}
	mine := c.newOpening()
	if err := p.prove(appendOpening(nil, mine)); err != nil {
		return greeting{}, err
	}
	if theirs.version != mine.version {
		return greeting{version: theirs.version, node: theirs.node}, refusal(otherVersion(mine.version, theirs.version))
	}
	g, err := readGreeting(p)
	if err == nil {
		err = p.check()
	}
	if errors.Is(err, errUnproven) || errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
		// who has seen by this node's proof that the secrets differ has hung up
		err = theirs.strangerTo(&mine)
	}
	if err != nil {
		return greeting{}, err
	}
	return g, nil
}
