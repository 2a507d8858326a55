package personal

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/loopback"
)

// An Elsewhere is a remote mesh that another operator runs, for example the mesh of a team.
type Elsewhere struct {
	// URL is the base URL, without /mcp and without a slash at the end.
	URL string

	dir string
}

// Elsewhere returns the remote mesh at a URL, which may end with /mcp. The URL must begin with https unless its host is
// this machine.
func (p Paths) Elsewhere(text string) (Elsewhere, error) {
	u, err := url.Parse(text)
	if err != nil {
		return Elsewhere{}, errors.New("it is not a URL: write a URL such as https://mesh.example.com") // the error of url.Parse may contain a secret
	}
	switch {
	case u.User != nil:
		return Elsewhere{}, errors.New("the URL contains a user name or a password: remove them, because the mesh uses only the token")
	case u.Scheme == "http" && !loopback.Host(u.Hostname()):
		return Elsewhere{}, fmt.Errorf("http://%s would show the token to everyone on the network: use https", u.Host)
	case u.Scheme != "https" && u.Scheme != "http", u.Hostname() == "":
		return Elsewhere{}, fmt.Errorf("%q is not a URL that begins with https://", text)
	case !plainHost.MatchString(u.Hostname()):
		return Elsewhere{}, fmt.Errorf("the host %+q has characters other than ASCII letters, digits, dots and hyphens, so it may look like another host: write it in Punycode, as in https://xn--bcher-kva.example", u.Hostname())
	case u.RawQuery != "" || u.Fragment != "":
		return Elsewhere{}, errors.New("the URL has a query or a fragment: remove it")
	}
	u.Host = strings.ToLower(u.Host)
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/mcp")
	u.RawPath = ""
	e := Elsewhere{URL: strings.TrimRight(u.String(), "/")}
	// The host's name makes the directory's name readable, and the digest makes it unique.
	sum := sha256.Sum256([]byte(e.URL))
	name := strings.ReplaceAll(strings.ToLower(u.Hostname()), ":", "-")
	const longest = 64
	e.dir = filepath.Join(p.Data, "tokens", "elsewhere", name[:min(len(name), longest)]+"-"+hex.EncodeToString(sum[:]))
	return e, nil
}

// plainHost matches IP addresses and host names in ASCII.
var plainHost = regexp.MustCompile(`^[A-Za-z0-9._:-]+$`)

// IsCleartext reports whether the token is sent without TLS. This is possible only if the mesh is on this machine.
func (e Elsewhere) IsCleartext() bool { return strings.HasPrefix(e.URL, "http://") }

// Token returns the path of the file that contains a client's token for this mesh.
func (e Elsewhere) Token(client string) string { return filepath.Join(e.dir, client) }

// Authority returns the path of the file with the certificate authority of this mesh. The file exists only if the mesh
// has its own certificate authority. The path can't be the path of a token, because no client has the name ca.pem.
func (e Elsewhere) Authority() string { return filepath.Join(e.dir, "ca.pem") }

// Address returns the path of the file with the URL of this mesh. The file must exist before a token is read. The path
// can't be the path of a token, because no client has the name mesh.url.
func (e Elsewhere) Address() string { return filepath.Join(e.dir, "mesh.url") }

// ReadToken returns the content of the file that contains a client's token. If the directory does not belong to the URL
// of this mesh, ReadToken returns an error and does not read the token. If the client has no token, the error wraps
// fs.ErrNotExist.
func (e Elsewhere) ReadToken(client string) ([]byte, error) {
	stored, err := os.ReadFile(e.Address())
	if err != nil {
		return nil, err
	}
	if string(stored) != e.URL {
		return nil, fmt.Errorf("%s is for a mesh other than %s: remove the directory, and run init --http again", e.Address(), e.URL)
	}
	return os.ReadFile(e.Token(client))
}
