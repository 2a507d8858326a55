// Package objects stores objects in a directory or in an S3 bucket. Each object has a key. Package store uses this
// package to store the states of agents.
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

// Open returns the bucket with the given URL. The URL is either s3://NAME?region=REGION, as described at [OpenS3], or
// file:///PATH for a directory. Several processes may share a directory. The directory must exist, because it may be a
// mount point. If the URL has the option create_dir=true, Open creates the directory.
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
	for name := range u.Query() { // options of earlier releases are accepted and ignored
		if !slices.Contains([]string{"create_dir", "metadata", "no_tmp_dir"}, name) {
			return nil, fmt.Errorf("the URL of the bucket has the option %q, which a folder does not have", name)
		}
	}
	create, _ := strconv.ParseBool(u.Query().Get("create_dir"))
	return OpenFolder(filepath.FromSlash(u.Path), create)
}

// ErrNotFound means that there is no object with the key.
var ErrNotFound = errors.New("no such object")

// Object describes an object.
type Object struct {
	Key string
	// Modified is when the object was written.
	Modified time.Time
}

// Bucket is a set of objects. A key consists of two parts that are separated by a slash. A Bucket is safe for
// concurrent use.
type Bucket interface {
	// Write writes an object completely or not at all. If the bucket is a directory, the object is on the disk when
	// Write returns.
	Write(ctx context.Context, key string, data []byte) error
	// Read opens an object. It returns [ErrNotFound] if the object does not exist.
	Read(ctx context.Context, key string) (io.ReadCloser, error)
	// List returns the objects whose keys have the given first part. The sequence ends after the first error.
	List(ctx context.Context, first string) iter.Seq2[Object, error]
	// Delete deletes an object. It returns nil if the object does not exist.
	Delete(ctx context.Context, key string) error
	// Close releases the resources of the bucket. It does not delete objects.
	Close() error
}
