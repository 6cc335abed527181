// Kernels for the layers that no library has in the form needed here. Single precision, images in the order NCHW.
//
// Every value is computed by one thread in one order, so that results are the same bit for bit on every run and do not
// depend on the device; there are no atomic additions. Two kinds of bodies: EACH(i, n) runs over n values, whatever the
// grid; a kernel with PHASEs works by blocks of BLOCK threads, which meet at the start of every phase. A compiler for
// another machine may define the macros itself: what is written with them is plain C.
//
// Sums over a channel are cut into parts, a block each; a later launch adds up what the parts gave. How many parts there
// are follows from the sizes of the layer alone (cuda_calls.py). A channel is blockIdx.x, a part of it blockIdx.y.
#ifndef KERNEL
#define KERNEL(NAME, ...) extern "C" __global__ void NAME(__VA_ARGS__)
#define DEVICE inline __device__
#define SHARED __shared__
#define EACH(I, N) \
  for (long I = blockIdx.x * (long)blockDim.x + threadIdx.x; I < (N); I += (long)gridDim.x * blockDim.x)
#define PHASE(T) for (int T = (__syncthreads(), (int)threadIdx.x), once_##T = 1; once_##T; once_##T = 0)
#endif
#define BLOCK 256
// Add the BLOCK numbers of `part` pairwise; in the next phase part[0] is the sum, or the first `COUNT` are those of every
// COUNT-th number.
#define SUM_DOWN_TO(COUNT, PART) \
  for (int step = BLOCK / 2; step >= COUNT; step /= 2) PHASE(t) if (t < step) PART[t] += PART[t + step]
#define SUM(PART) SUM_DOWN_TO(1, PART)
// Add up what the parts of a channel gave; in the next phase part[0] is the sum.
#define SUM_OF_PARTS(PARTS, PART) \
  PHASE(t) { \
    float total = 0; \
    for (unsigned k = t; k < gridDim.y; k += BLOCK) total += (PARTS)[blockIdx.x * (long)gridDim.y + k]; \
    PART[t] = total; \
  } \
  SUM(PART)
// Kernels over the values of an image have rows of blocks, for an image each or for several.
#define EACH_IMAGE(K, IMAGES) for (long K = blockIdx.y; K < (IMAGES); K += gridDim.y)

// A walk of thread t over a part of a channel: every BLOCK-th of `size` values, counted over the images and the positions p
// of each. The value is the one `at`; a step from one to the next needs no division.
struct Walk { long i, end, at, image, stride, skip; int p, positions, images, rest; };

DEVICE Walk walk_from(int t, int images, int channels, int positions, long size) {
  long count = (long)images * positions, begin = blockIdx.y * size, i = begin + t, image = i / positions;
  Walk w;
  w.i = i;
  w.end = begin + size < count ? begin + size : count;
  w.image = image;
  w.positions = positions;
  w.p = i - image * positions;
  w.at = (image * channels + blockIdx.x) * positions + w.p;
  w.images = BLOCK / positions;
  w.rest = BLOCK % positions;
  w.stride = (long)w.images * channels * positions + w.rest;
  w.skip = (channels - 1L) * positions;
  return w;
}

DEVICE void take_step(Walk *w) {
  w->i += BLOCK;
  w->image += w->images;
  w->p += w->rest;
  w->at += w->stride;
  if (w->p >= w->positions) {
    w->image += 1;
    w->p -= w->positions;
    w->at += w->skip;
  }
}
#define WALK(W, T) for (Walk W = walk_from(T, images, channels, positions, size); W.i < W.end; take_step(&W))

// Where value o lies among planes of rows and columns.
struct Cell { long plane; int row, column; };

DEVICE Cell cell_of(long o, int rows, int columns) {
  long line = o / columns, plane = line / rows;
  Cell cell = {plane, (int)(line - plane * rows), (int)(o - line * columns)};
  return cell;
}

// --- ReLU, copies, sums -----------------------------------------------------------------------------------------------
// y = max(y, 0); with signs, a byte a value: whether y is above 0.
KERNEL(relu_forward, float *y, unsigned char *signs, long n) {
  EACH(i, n) {
    y[i] = y[i] > 0 ? y[i] : 0;
    if (signs) signs[i] = y[i] > 0;
  }
}

KERNEL(relu_backward, const float *y, float *dy, long n) {
  EACH(i, n) if (!(y[i] > 0)) dy[i] = 0;
}

KERNEL(relu_backward_signs, const unsigned char *signs, float *dy, long n) {
  EACH(i, n) if (!signs[i]) dy[i] = 0;
}

// y = x, or y + x.
KERNEL(copy, const float *x, float *y, int adds, long n) {
  EACH(i, n) y[i] = adds ? y[i] + x[i] : x[i];
}

// --- updates of weights -----------------------------------------------------------------------------------------------
KERNEL(update_sgd, const float *dw, float *w, float rate, long n) {
  EACH(i, n) w[i] -= rate * dw[i];
}

// m is the velocity.
KERNEL(update_momentum, const float *dw, float *w, float *m, float momentum, float rate, long n) {
  EACH(i, n) {
    m[i] = momentum * m[i] + dw[i];
    w[i] -= rate * m[i];
  }
}

// m and v are the moments: Kingma and Ba 2015, without the correction of their bias. Of w a share is kept, by AdamW.
KERNEL(update_adam, const float *dw, float *w, float *m, float *v, float rate, float first, float second, float epsilon,
       float kept, long n) {
  EACH(i, n) {
    m[i] = first * m[i] + (1 - first) * dw[i];
    v[i] = second * v[i] + (1 - second) * dw[i] * dw[i];
    w[i] = kept * w[i] - rate * m[i] / (sqrtf(v[i]) + epsilon);
  }
}

// Channels of x to channels of y: `count` values an image, from those at `from` to those at `to`: y = x, or y + x.
KERNEL(copy_channels, const float *x, long x_values, long from, float *y, long y_values, long to, int adds, int images,
       long count) {
  EACH_IMAGE(k, images) EACH(i, count) {
    float value = x[k * x_values + from + i];
    float *place = y + k * y_values + to + i;
    *place = adds ? *place + value : value;
  }
}

// y[c] + b[c] at every position; b is one row for all images of n values.
KERNEL(add_bias, const float *b, float *y, int positions, int images, long n) {
  EACH_IMAGE(k, images) EACH(i, n) y[k * n + i] += b[i / positions];
}

// y + x, where x has one value an image and channel.
KERNEL(add_planes, const float *x, float *y, int positions, long n) {
  EACH(i, n) y[i] += x[i / positions];
}

// The sum over images and positions of a part of a channel: a number a part, sum or sums + sum.
KERNEL(sum_channels, const float *dy, float *sums, int images, int channels, int positions, long size, int adds) {
  SHARED float part[BLOCK];
  PHASE(t) {
    float sum = 0;
    WALK(w, t) sum += dy[w.at];
    part[t] = sum;
  }
  SUM(part);
  PHASE(t) if (t == 0) {
    float *place = sums + (blockIdx.x * (long)gridDim.y + blockIdx.y);
    *place = adds ? *place + part[0] : part[0];
  }
}

// The sum over the positions of an image's channel, or the parts of a sum (a block each): dx = sum, or dx + sum.
KERNEL(sum_planes, const float *dy, float *dx, int positions, int adds) {
  SHARED float part[BLOCK];
  PHASE(t) {
    float sum = 0;
    for (int i = t; i < positions; i += BLOCK) sum += dy[(long)blockIdx.x * positions + i];
    part[t] = sum;
  }
  SUM(part);
  PHASE(t) if (t == 0) dx[blockIdx.x] = adds ? dx[blockIdx.x] + part[0] : part[0];
}

// --- pooling ----------------------------------------------------------------------------------------------------------
// Windows are cut at the border of the image; h, v count rows and columns of the output, i, j of the input.
struct Window { int top, bottom, left, right; };

DEVICE Window window_at(int h, int v, int height, int width, int kernel, int stride, int pad) {
  int top = h * stride - pad, left = v * stride - pad;
  Window w = {top < 0 ? 0 : top, top + kernel > height ? height : top + kernel, left < 0 ? 0 : left,
              left + kernel > width ? width : left + kernel};
  return w;
}

// The first row or column of windows that reaches i, and the number of rows or columns up to the last one.
DEVICE int first_window(int i, int kernel, int stride, int pad) {
  int reach = i + pad - kernel;
  return reach < 0 ? 0 : reach / stride + 1;
}
DEVICE int end_window(int i, int stride, int pad, int count) {
  int last = (i + pad) / stride + 1;
  return last < count ? last : count;
}

KERNEL(maxpool_forward, const float *x, float *y, int height, int width, int rows, int columns, int kernel, int stride,
       int pad, long n) {
  EACH(o, n) {
    Cell cell = cell_of(o, rows, columns);
    const float *plane = x + cell.plane * height * width;
    Window w = window_at(cell.row, cell.column, height, width, kernel, stride, pad);
    float greatest = plane[w.top * width + w.left];
    for (int i = w.top; i < w.bottom; ++i)
      for (int j = w.left; j < w.right; ++j)
        if (!(plane[i * width + j] <= greatest)) greatest = plane[i * width + j];
    y[o] = greatest;
  }
}

// Each x collects from the windows in which it is the first that equals y.
KERNEL(maxpool_backward, const float *dy, const float *x, const float *y, float *dx, int height, int width, int rows,
       int columns, int kernel, int stride, int pad, int adds, long n) {
  EACH(o, n) {
    Cell cell = cell_of(o, height, width);
    int i = cell.row, j = cell.column;
    const float *plane = x + cell.plane * height * width;
    float sum = 0;
    for (int h = first_window(i, kernel, stride, pad); h < end_window(i, stride, pad, rows); ++h)
      for (int v = first_window(j, kernel, stride, pad); v < end_window(j, stride, pad, columns); ++v) {
        long at = (cell.plane * rows + h) * columns + v;
        if (plane[i * width + j] != y[at]) continue;
        Window w = window_at(h, v, height, width, kernel, stride, pad);
        int first = 1;
        for (int k = w.top; k <= i && first; ++k)
          for (int l = w.left; l < (k < i ? w.right : j) && first; ++l) first = plane[k * width + l] != y[at];
        if (first) sum += dy[at];
      }
    dx[o] = adds ? dx[o] + sum : sum;
  }
}

KERNEL(avgpool_forward, const float *x, float *y, int height, int width, int rows, int columns, int kernel, int stride,
       int pad, long n) {
  EACH(o, n) {
    Cell cell = cell_of(o, rows, columns);
    const float *plane = x + cell.plane * height * width;
    Window w = window_at(cell.row, cell.column, height, width, kernel, stride, pad);
    float sum = 0;
    for (int i = w.top; i < w.bottom; ++i)
      for (int j = w.left; j < w.right; ++j) sum += plane[i * width + j];
    y[o] = sum / ((w.bottom - w.top) * (w.right - w.left));
  }
}

KERNEL(avgpool_backward, const float *dy, float *dx, int height, int width, int rows, int columns, int kernel,
       int stride, int pad, int adds, long n) {
  EACH(o, n) {
    Cell cell = cell_of(o, height, width);
    int i = cell.row, j = cell.column;
    float sum = 0;
    for (int h = first_window(i, kernel, stride, pad); h < end_window(i, stride, pad, rows); ++h)
      for (int v = first_window(j, kernel, stride, pad); v < end_window(j, stride, pad, columns); ++v) {
        Window w = window_at(h, v, height, width, kernel, stride, pad);
        sum += dy[(cell.plane * rows + h) * columns + v] / ((w.bottom - w.top) * (w.right - w.left));
      }
    dx[o] = adds ? dx[o] + sum : sum;
  }
}

// --- lowering, sample by sample as in Caffe ---------------------------------------------------------------------------
// One image as a matrix: a row for every channel and tap of the window, a column for every position of the output; 0 beyond
// the border. n = channels x positions.
KERNEL(im2col, const float *x, float *lowered, int height, int width, int rows, int columns, int kernel_h, int kernel_w,
       int stride, int pad, long n) {
  EACH(o, n) {
    Cell cell = cell_of(o, rows, columns);
    long positions = (long)rows * columns;
    int top = cell.row * stride - pad, left = cell.column * stride - pad;
    const float *plane = x + cell.plane * height * width;
    float *to = lowered + cell.plane * kernel_h * kernel_w * positions + (long)cell.row * columns + cell.column;
    for (int i = top; i < top + kernel_h; ++i)
      for (int j = left; j < left + kernel_w; ++j, to += positions)
        *to = i >= 0 && i < height && j >= 0 && j < width ? plane[i * width + j] : 0;
  }
}

// The transpose: each x collects from the windows that hold it. n = channels x height x width.
KERNEL(col2im, const float *lowered, float *dx, int height, int width, int rows, int columns, int kernel_h, int kernel_w,
       int stride, int pad, long n) {
  EACH(o, n) {
    Cell cell = cell_of(o, height, width);
    int i = cell.row, j = cell.column;
    long positions = (long)rows * columns;
    const float *from = lowered + cell.plane * kernel_h * kernel_w * positions;
    float sum = 0;
    for (int h = first_window(i, kernel_h, stride, pad); h < end_window(i, stride, pad, rows); ++h)
      for (int v = first_window(j, kernel_w, stride, pad); v < end_window(j, stride, pad, columns); ++v) {
        int tap = (i + pad - h * stride) * kernel_w + (j + pad - v * stride);
        sum += from[tap * positions + (long)h * columns + v];
      }
    dx[o] = sum;
  }
}

// sum = the first of `count` arrays of n values, plus the second, and so on; they begin `stride` values apart.
KERNEL(sum_parts, const float *parts, float *sum, int count, long stride, long n) {
  EACH(i, n) {
    float total = parts[i];
    for (int k = 1; k < count; ++k) total += parts[k * stride + i];
    sum[i] = total;
  }
}

// --- normalisation ----------------------------------------------------------------------------------------------------
// k + alpha / size * (sum of x^2 over the `size` channels around c).
DEVICE float lrn_scale(const float *x, int c, int channels, int positions, int size, float alpha, float k) {
  float sum = 0;
  int begin = c - size / 2, end = begin + size;
  for (int d = begin < 0 ? 0 : begin; d < (end < channels ? end : channels); ++d) {
    float value = x[(long)d * positions];
    sum += value * value;
  }
  return k + alpha / size * sum;
}

KERNEL(lrn_forward, const float *x, float *y, int channels, int positions, int size, float alpha, float beta, float k,
       int images, long n) {
  EACH_IMAGE(image, images) EACH(i, n) {
    int c = i / positions;
    long o = image * n + i;
    const float *column = x + (o - (long)c * positions);
    y[o] = x[o] * powf(lrn_scale(column, c, channels, positions, size, alpha, k), -beta);
  }
}

// dx[c] = dy[c] / scale[c]^beta - 2 alpha beta / size x[c] sum over d near c of dy[d] y[d] / scale[d].
KERNEL(lrn_backward, const float *dy, const float *x, const float *y, float *dx, int channels, int positions, int size,
       float alpha, float beta, float k, int adds, int images, long n) {
  EACH_IMAGE(image, images) EACH(i, n) {
    int c = i / positions;
    long o = image * n + i, base = o - (long)c * positions;
    float sum = 0;
    int begin = c + size / 2 - size + 1, end = c + size / 2 + 1;
    for (int d = begin < 0 ? 0 : begin; d < (end < channels ? end : channels); ++d) {
      long at = base + (long)d * positions;
      sum += dy[at] * y[at] / lrn_scale(x + base, d, channels, positions, size, alpha, k);
    }
    float scale = lrn_scale(x + base, c, channels, positions, size, alpha, k);
    float value = dy[o] * powf(scale, -beta) - 2 * alpha * beta / size * x[o] * sum;
    dx[o] = adds ? dx[o] + value : value;
  }
}

// Batch norm, forward, after `sum_channels`: the sum of the squared distances from the mean, a number a part. saved: the
// means, then one over the standard deviations, which come with y.
KERNEL(bn_squares, const float *x, const float *sums, float *squares, float *saved, int images, int channels,
       int positions, long size) {
  SHARED float part[BLOCK];
  SHARED float mean;
  SUM_OF_PARTS(sums, part);
  PHASE(t) if (t == 0) {
    mean = part[0] / ((long)images * positions);
    if (blockIdx.y == 0) saved[blockIdx.x] = mean;
  }
  PHASE(t) {
    float sum = 0;
    WALK(w, t) {
      float off = x[w.at] - mean;
      sum += off * off;
    }
    part[t] = sum;
  }
  SUM(part);
  PHASE(t) if (t == 0) squares[blockIdx.x * (long)gridDim.y + blockIdx.y] = part[0];
}

KERNEL(bn_forward, const float *x, const float *w, const float *squares, float *y, float *saved, int images, int channels,
       int positions, long size, float epsilon) {
  SHARED float part[BLOCK];
  SHARED float scale;
  SUM_OF_PARTS(squares, part);
  PHASE(t) if (t == 0) {
    scale = 1 / sqrtf(part[0] / ((long)images * positions) + epsilon);
    if (blockIdx.y == 0) saved[channels + blockIdx.x] = scale;
  }
  PHASE(t) {
    float mean = saved[blockIdx.x], factor = w[blockIdx.x], shift = w[channels + blockIdx.x];
    WALK(v, t) y[v.at] = factor * (x[v.at] - mean) * scale + shift;
  }
}

// Batch norm, backward: the gradients of the scales, a number a part, then those of the shifts.
KERNEL(bn_sums, const float *dy, const float *x, const float *saved, float *sums, int images, int channels, int positions,
       long size) {
  SHARED float shift[BLOCK], factor[BLOCK];
  PHASE(t) {
    float mean = saved[blockIdx.x], scale = saved[channels + blockIdx.x], of_shift = 0, of_factor = 0;
    WALK(w, t) {
      of_shift += dy[w.at];
      of_factor += dy[w.at] * (x[w.at] - mean) * scale;
    }
    shift[t] = of_shift;
    factor[t] = of_factor;
  }
  SUM(shift);
  SUM(factor);
  PHASE(t) if (t == 0) {
    sums[blockIdx.x * (long)gridDim.y + blockIdx.y] = factor[0];
    sums[(channels + (long)blockIdx.x) * gridDim.y + blockIdx.y] = shift[0];
  }
}

// After `bn_sums`: dx, or dx + that.
KERNEL(bn_backward, const float *dy, const float *x, const float *saved, const float *w, const float *sums, float *dx,
       int images, int channels, int positions, long size, int adds) {
  SHARED float shift[BLOCK], factor[BLOCK];
  SUM_OF_PARTS(sums, factor);
  SUM_OF_PARTS(sums + (long)channels * gridDim.y, shift);
  PHASE(t) {
    float mean = saved[blockIdx.x], scale = saved[channels + blockIdx.x], outer = w[blockIdx.x] * scale;
    long count = (long)images * positions;
    WALK(v, t) {
      float value = outer * (dy[v.at] - (shift[0] + (x[v.at] - mean) * scale * factor[0]) / count);
      dx[v.at] = adds ? dx[v.at] + value : value;
    }
  }
}

// Layer norm: a block has COLUMNS positions, which lie side by side, and BLOCK / COLUMNS threads for the channels of each.
#define COLUMNS 32
// What thread t has: every so many channels from c on, none beyond the last position; the first channel is at `begin`.
struct Column { long begin, image; int p, c; };

DEVICE Column column_of(int t, int channels, int positions, long n) {
  long i = blockIdx.x * (long)COLUMNS + t % COLUMNS, image = i / positions;
  int p = i - image * positions;
  Column column = {image * channels * positions + p, image, p, i < n ? t / COLUMNS : channels};
  return column;
}
#define EACH_CHANNEL(C, COLUMN) for (long C = COLUMN.c; C < channels; C += BLOCK / COLUMNS)

// saved: of each image the means, then one over the deviations.
KERNEL(norm_forward, const float *x, const float *w, float *y, float *saved, int channels, int positions, float epsilon,
       long n) {
  SHARED float part[BLOCK], mean[COLUMNS], scale[COLUMNS];
  PHASE(t) {
    Column column = column_of(t, channels, positions, n);
    float sum = 0;
    EACH_CHANNEL(c, column) sum += x[column.begin + c * positions];
    part[t] = sum;
  }
  SUM_DOWN_TO(COLUMNS, part);
  PHASE(t) if (t < COLUMNS) mean[t] = part[t] / channels;
  PHASE(t) {
    Column column = column_of(t, channels, positions, n);
    float squares = 0;
    EACH_CHANNEL(c, column) {
      float off = x[column.begin + c * positions] - mean[t % COLUMNS];
      squares += off * off;
    }
    part[t] = squares;
  }
  SUM_DOWN_TO(COLUMNS, part);
  PHASE(t) if (t < COLUMNS) {
    Column column = column_of(t, channels, positions, n);
    scale[t] = 1 / sqrtf(part[t] / channels + epsilon);
    if (column.c < channels) {
      saved[column.image * 2 * positions + column.p] = mean[t];
      saved[(column.image * 2 + 1) * positions + column.p] = scale[t];
    }
  }
  PHASE(t) {
    Column column = column_of(t, channels, positions, n);
    EACH_CHANNEL(c, column) {
      long at = column.begin + c * positions;
      y[at] = w[c] * (x[at] - mean[t % COLUMNS]) * scale[t % COLUMNS] + w[channels + c];
    }
  }
}

KERNEL(norm_backward, const float *dy, const float *x, const float *saved, const float *w, float *dx, int channels,
       int positions, int adds, long n) {
  SHARED float sum[BLOCK], along[BLOCK], mean[COLUMNS], scale[COLUMNS];
  PHASE(t) if (t < COLUMNS) {
    Column column = column_of(t, channels, positions, n);
    mean[t] = column.c < channels ? saved[column.image * 2 * positions + column.p] : 0;
    scale[t] = column.c < channels ? saved[(column.image * 2 + 1) * positions + column.p] : 0;
  }
  PHASE(t) {
    Column column = column_of(t, channels, positions, n);
    float of_dy = 0, of_product = 0;
    EACH_CHANNEL(c, column) {
      long at = column.begin + c * positions;
      of_dy += w[c] * dy[at];
      of_product += w[c] * dy[at] * (x[at] - mean[t % COLUMNS]) * scale[t % COLUMNS];
    }
    sum[t] = of_dy;
    along[t] = of_product;
  }
  SUM_DOWN_TO(COLUMNS, sum);
  SUM_DOWN_TO(COLUMNS, along);
  PHASE(t) {
    Column column = column_of(t, channels, positions, n);
    int k = t % COLUMNS;
    EACH_CHANNEL(c, column) {
      long at = column.begin + c * positions;
      float value = scale[k] * (w[c] * dy[at] - (sum[k] + (x[at] - mean[k]) * scale[k] * along[k]) / channels);
      dx[at] = adds ? dx[at] + value : value;
    }
  }
}

// The gradients of the scales, a number a part, then those of the shifts: sums, or sums + those.
KERNEL(norm_weights, const float *dy, const float *x, const float *saved, float *sums, int images, int channels,
       int positions, long size, int adds) {
  SHARED float shift[BLOCK], factor[BLOCK];
  PHASE(t) {
    float of_shift = 0, of_factor = 0;
    WALK(w, t) {
      const float *of_image = saved + w.image * 2 * positions + w.p;
      of_shift += dy[w.at];
      of_factor += dy[w.at] * (x[w.at] - of_image[0]) * of_image[positions];
    }
    shift[t] = of_shift;
    factor[t] = of_factor;
  }
  SUM(shift);
  SUM(factor);
  PHASE(t) if (t == 0) {
    float *of_factors = sums + (blockIdx.x * (long)gridDim.y + blockIdx.y);
    float *of_shifts = of_factors + (long)channels * gridDim.y;
    *of_factors = adds ? *of_factors + factor[0] : factor[0];
    *of_shifts = adds ? *of_shifts + shift[0] : shift[0];
  }
}

// --- a factor a channel, GELU -----------------------------------------------------------------------------------------
// y = w[c] x, or y + that: also the gradient of x from that of y. An image has n values.
KERNEL(scale, const float *x, const float *w, float *y, int positions, int adds, int images, long n) {
  EACH_IMAGE(k, images) EACH(i, n) {
    float value = w[i / positions] * x[k * n + i];
    y[k * n + i] = adds ? y[k * n + i] + value : value;
  }
}

// The sum of x dy over images and positions of a part of a channel: a number a part, sum or sums + sum.
KERNEL(scale_weights, const float *dy, const float *x, float *sums, int images, int channels, int positions, long size,
       int adds) {
  SHARED float part[BLOCK];
  PHASE(t) {
    float sum = 0;
    WALK(w, t) sum += x[w.at] * dy[w.at];
    part[t] = sum;
  }
  SUM(part);
  PHASE(t) if (t == 0) {
    float *place = sums + (blockIdx.x * (long)gridDim.y + blockIdx.y);
    *place = adds ? *place + part[0] : part[0];
  }
}

// tanh(sqrt(2 / pi) (x + 0.044715 x^3)): Hendrycks and Gimpel 2016.
DEVICE float gelu_bend(float x) { return tanhf(0.7978845608f * (x + 0.044715f * x * x * x)); }

KERNEL(gelu_forward, const float *x, float *y, long n) {
  EACH(i, n) y[i] = 0.5f * x[i] * (1 + gelu_bend(x[i]));
}

KERNEL(gelu_backward, const float *dy, const float *x, float *dx, int adds, long n) {
  EACH(i, n) {
    float bend = gelu_bend(x[i]), slope = 0.7978845608f * (1 + 3 * 0.044715f * x[i] * x[i]) * (1 - bend * bend);
    float value = dy[i] * 0.5f * (1 + bend + x[i] * slope);
    dx[i] = adds ? dx[i] + value : value;
  }
}

KERNEL(sigmoid_forward, const float *x, float *y, long n) {
  EACH(i, n) y[i] = 0.5f * (1 + tanhf(0.5f * x[i]));
}

KERNEL(sigmoid_backward, const float *dy, const float *y, float *dx, int adds, long n) {
  EACH(i, n) {
    float value = dy[i] * y[i] * (1 - y[i]);
    dx[i] = adds ? dx[i] + value : value;
  }
}

// --- dropout and losses ------------------------------------------------------------------------------------------------
// Whether value `index` of the batch is kept: a bit of a hash (the finaliser of MurmurHash3, Appleby 2011).
DEVICE unsigned char is_kept(unsigned index, unsigned key) {
  unsigned h = index * 0x9E3779B9u + key;
  h ^= h >> 16;
  h *= 0x85EBCA6Bu;
  h ^= h >> 13;
  h *= 0xC2B2AE35u;
  h ^= h >> 16;
  return h >> 31;
}

// `first`: index in the batch of the first value of x. x and y may be the same.
KERNEL(dropout_forward, const float *x, float *y, unsigned char *mask, long first, unsigned key, long n) {
  EACH(i, n) {
    mask[i] = is_kept((unsigned)(first + i), key);
    y[i] = mask[i] ? 2 * x[i] : 0;
  }
}

KERNEL(dropout_backward, const float *dy, const unsigned char *mask, float *dx, int adds, long n) {
  EACH(i, n) {
    float value = mask[i] ? 2 * dy[i] : 0;
    dx[i] = adds ? dx[i] + value : value;
  }
}

// Probabilities over the channels at each position of a part of an image; and the sum there of -log at the labels, over all
// positions of the image: a number a part of their mean. `labels` and `losses` are those of the round's first image.
KERNEL(softmax_forward, const float *x, const int *labels, float *y, float *losses, int channels, int positions,
       long size) {
  SHARED float part[BLOCK];
  long image = blockIdx.x, begin = blockIdx.y * size, end = begin + size < positions ? begin + size : positions;
  PHASE(t) {
    float loss = 0;
    for (long p = begin + t; p < end; p += BLOCK) {
      const float *from = x + image * channels * positions + p;
      float *to = y + image * channels * positions + p;
      float greatest = from[0], sum = 0;
      for (long c = 1; c < channels; ++c) greatest = from[c * positions] > greatest ? from[c * positions] : greatest;
      for (long c = 0; c < channels; ++c) sum += expf(from[c * positions] - greatest);
      for (long c = 0; c < channels; ++c) to[c * positions] = expf(from[c * positions] - greatest) / sum;
      long label = labels[image * positions + p];
      loss += logf(sum) - (from[label * positions] - greatest);
    }
    part[t] = loss;
  }
  SUM(part);
  PHASE(t) if (t == 0) losses[image * gridDim.y + blockIdx.y] = part[0] / positions;
}

// dx = (y - 1 at the label) / total. An image has n values.
KERNEL(softmax_backward, const float *y, const int *labels, float *dx, int positions, float total, int adds, int images,
       long n) {
  EACH_IMAGE(k, images) EACH(i, n) {
    int c = i / positions, p = i - (long)c * positions;
    float value = (y[k * n + i] - (labels[k * positions + p] == c)) / total;
    dx[k * n + i] = adds ? dx[k * n + i] + value : value;
  }
}

// Contrastive loss (Hadsell et al. 2006), a block an image: d^2 / 2 at label 1, max(1 - d, 0)^2 / 2 at 0.
KERNEL(contrast_forward, const float *x0, const float *x1, const int *labels, float *y, float *losses, int values) {
  SHARED float part[BLOCK];
  long image = blockIdx.x, begin = image * values;
  PHASE(t) {
    part[t] = 0;
    for (int i = t; i < values; i += BLOCK) part[t] += (x0[begin + i] - x1[begin + i]) * (x0[begin + i] - x1[begin + i]);
  }
  SUM(part);
  PHASE(t) if (t == 0) {
    float distance = sqrtf(part[0]), far = distance < 1 ? 1 - distance : 0;
    y[image] = losses[image] = labels[image] == 1 ? part[0] / 2 : far * far / 2;
  }
}

// dx0 or dx1 (`sign` 1 or -1), a block an image; `total`: images of the batch.
KERNEL(contrast_backward, const float *x0, const float *x1, const int *labels, float *dx, int values, float total,
       float sign, int adds) {
  SHARED float part[BLOCK];
  long begin = (long)blockIdx.x * values;
  PHASE(t) {
    part[t] = 0;
    for (int i = t; i < values; i += BLOCK) part[t] += (x0[begin + i] - x1[begin + i]) * (x0[begin + i] - x1[begin + i]);
  }
  SUM(part);
  PHASE(t) {
    float distance = sqrtf(part[0]), far = distance < 1 && distance > 0 ? -(1 - distance) / distance : 0;
    float factor = sign * (labels[blockIdx.x] == 1 ? 1 : far) / total;
    for (int i = t; i < values; i += BLOCK) {
      float value = factor * (x0[begin + i] - x1[begin + i]);
      dx[begin + i] = adds ? dx[begin + i] + value : value;
    }
  }
}

// --- resampling -------------------------------------------------------------------------------------------------------
// mode 0, crop: y[h, v] = x[h + a, v + b]; 1, repeat: x[h / a, v / b]; 2, subsample: x[a h, b v], 0 in channels beyond x's.
KERNEL(resample_forward, const float *x, float *y, int x_channels, int height, int width, int channels, int rows,
       int columns, int mode, int a, int b, int images, long n) {
  EACH_IMAGE(k, images) EACH(o, n) {
    Cell cell = cell_of(o, rows, columns);
    int h = cell.row, v = cell.column;
    int i = mode == 0 ? h + a : mode == 1 ? h / a : h * a, j = mode == 0 ? v + b : mode == 1 ? v / b : v * b;
    y[k * n + o] = cell.plane < x_channels ? x[((k * x_channels + cell.plane) * height + i) * width + j] : 0;
  }
}

// The transpose: each x collects from where it went.
KERNEL(resample_backward, const float *dy, float *dx, int x_channels, int height, int width, int channels, int rows,
       int columns, int mode, int a, int b, int adds, int images, long n) {
  EACH_IMAGE(k, images) EACH(o, n) {
    Cell cell = cell_of(o, height, width);
    int i = cell.row, j = cell.column;
    const float *from = dy + (k * channels + cell.plane) * rows * columns;
    float sum = 0;
    if (mode == 0) {
      if (i >= a && i - a < rows && j >= b && j - b < columns) sum = from[(i - a) * columns + j - b];
    } else if (mode == 1) {
      for (int h = i * a; h < (i + 1) * a; ++h)
        for (int v = j * b; v < (j + 1) * b; ++v) sum += from[h * columns + v];
    } else if (i % a == 0 && j % b == 0 && i / a < rows && j / b < columns) {
      sum = from[i / a * columns + j / b];
    }
    dx[k * n + o] = adds ? dx[k * n + o] + sum : sum;
  }
}
