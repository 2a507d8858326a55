// Package objects stores objects by their keys, in a folder or in a bucket of an S3 object store. Package store uses
// the
// package for the states of agents.
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

// Open returns the bucket with a URL: s3://NAME?region=REGION as in [OpenS3], or file:///PATH for a folder, which
// several processes may share. The folder must exist, because it may be a mount. With the option create_dir=true, Open
// creates it.
func Open(text string) (Bucket, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("the URL of the bucket: %w", err)
	}
	if u.Scheme != "file" {
		return OpenS3(text)
	}
	if u.Host != "" || u.Path == "" {
		return nil, fmt.Errorf("the URL of the bucket must have the form file:///PATH, is %s", u.Redacted())
	}
	for name := range u.Query() { // earlier releases used the other options, which have no effect now
		if !slices.Contains([]string{"create_dir", "metadata", "no_tmp_dir"}, name) {
			return nil, fmt.Errorf("the URL of the bucket has the option %q, which a folder does not have", name)
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
	// Modified is the time at which the object was written.
	Modified time.Time
}

// Bucket is a set of objects. A key consists of two parts with a slash between them. A Bucket is safe for concurrent
// use.
type Bucket interface {
	// Write writes an object completely, or not at all. In a folder, the object is on disk when Write returns.
	Write(ctx context.Context, key string, data []byte) error
	// Read opens an object. Errors: [ErrNotFound].
	Read(ctx context.Context, key string) (io.ReadCloser, error)
	// List returns the objects whose keys have this first part. The sequence ends after an error.
	List(ctx context.Context, first string) iter.Seq2[Object, error]
	// Delete deletes an object. It is not an error if the object does not exist.
	Delete(ctx context.Context, key string) error
	// Close releases the resources of the bucket. The objects stay.
	Close() error
}
