// Package objects stores objects by their keys, in a folder or in a bucket of an S3 object store. The wasmagent service
// stores the states of agents with it.
package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// Open returns the bucket of a URL: s3://NAME?region=REGION as of [OpenS3], or file:///PATH, a folder that several
// processes may share. It must exist, because it may be a mount; create_dir=true creates it.
func Open(text string) (Bucket, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("the URL of the bucket: %w", err)
	}
	if u.Scheme != "file" {
		return OpenS3(text)
	}
	if u.Host != "" || u.Path == "" {
		return nil, fmt.Errorf("the bucket %s has not the form file:///PATH", u.Redacted())
	}
	for name := range u.Query() { // the others are of earlier versions, and have no effect
		if !slices.Contains([]string{"create_dir", "metadata", "no_tmp_dir"}, name) {
			return nil, fmt.Errorf("the URL of the bucket has the option %q; a folder has none", name)
		}
	}
	create, _ := strconv.ParseBool(u.Query().Get("create_dir"))
	return OpenFolder(filepath.FromSlash(u.Path), create)
}

// ErrNotFound means that there is no object with a key.
var ErrNotFound = errors.New("no such object")

// Object describes an object.
type Object struct {
	Key string
	// Modified is when the object was written.
	Modified time.Time
}

// Bucket is a set of objects. A key has two parts with a slash between them. It is safe for concurrent use.
type Bucket interface {
	// Write writes an object whole, or not at all. In a folder the object is synced to disk when Write returns.
	Write(ctx context.Context, key string, data []byte) error
	// Read opens an object. Errors: [ErrNotFound].
	Read(ctx context.Context, key string) (io.ReadCloser, error)
	// List returns the objects whose keys begin with a first part. After an error it ends.
	List(ctx context.Context, first string) iter.Seq2[Object, error]
	// Delete deletes an object, if there is one.
	Delete(ctx context.Context, key string) error
	// Close gives back what the bucket uses.
	Close() error
}
